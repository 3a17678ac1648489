//! Which characters of a hostile text may stay in it.
//!
//! One list for everything that is shown: what a terminal escapes, a name leaves out.

/// Whether a character only shows itself: no control character, nothing that changes the reading direction or ends a
/// line, and nothing invisible (zero-width ones, variation selectors, fillers, tags). Letters of every script, marks
/// and spaces are harmless.
pub(crate) fn is_harmless(character: char) -> bool {
    let invisible = matches!(character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}');
    !character.is_control() && !invisible
}
