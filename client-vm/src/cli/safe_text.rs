//! Makes hostile text harmless on a terminal.

/// The text with every character escaped that could move the cursor, change the reading direction or hide: control
/// characters, bidirectional controls, zero-width and other invisible ones. Letters of every script stay.
#[must_use]
pub fn sanitized(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if is_harmless(character) {
            safe.push(character);
        } else {
            safe.extend(character.escape_unicode());
        }
    }
    safe
}

fn is_harmless(character: char) -> bool {
    let invisible = matches!(character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}');
    !character.is_control() && !invisible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_stay_and_tricks_are_shown() {
        assert_eq!(sanitized("Möwe 海鸥 نورس"), "Möwe 海鸥 نورس");
        assert_eq!(sanitized("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(sanitized("exe\u{202e}gpj.pdf"), "exe\\u{202e}gpj.pdf");
        assert_eq!(sanitized("a\u{200b}b\u{9b}c\r\nd"), "a\\u{200b}b\\u{9b}c\\u{d}\\u{a}d");
    }
}
