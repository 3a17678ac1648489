//! Names from outside, as they may be shown and used.
//!
//! A source's file has the name that the source's computer gave it, and whoever sends one can put any bytes there.
//! Files on this VM's disk are called by our own ids; the name is shown, and becomes a file's name only when somebody
//! saves a copy.
//!
//! What is kept is the name's letters. Names are not normalised (Unicode's NFC, NFD): two that look alike may differ,
//! and whoever writes several files into one folder asks the folder.
//!
//! **Invariant:** a shown name is one path component of 1 to 255 bytes, without control characters and without any that
//! are invisible or change the reading direction; it neither begins like an option or a hidden file nor ends in a dot
//! or a space. Made from itself, it is itself.

use unicode_width::UnicodeWidthChar as _;

use crate::characters::is_harmless;

/// The longest name, in bytes: as much as a file system takes.
const MAX_NAME: usize = 255;
/// The longest extension that survives when a name is cut, in bytes, with its dot.
const MAX_EXTENSION: usize = 24;
/// Stands for a first character that would hide the file or make an option of it.
const STAND_IN: char = '_';

/// The name as it may be shown. `None` when nothing usable is left: the caller then uses a name of its own.
///
/// Names in gzip headers are Latin-1 by RFC 1952, and SecureDrop's servers write UTF-8: what is not UTF-8 is read as
/// Latin-1. Of a path the last usable component counts, with `/` and `\` as separators.
#[must_use]
pub fn shown_name(raw: &[u8]) -> Option<String> {
    let text = match std::str::from_utf8(raw) {
        Ok(text) => text.to_owned(),
        Err(_) => raw.iter().copied().map(char::from).collect(),
    };
    text.rsplit(['/', '\\']).find_map(component)
}

fn component(text: &str) -> Option<String> {
    let kept: String = text.chars().map(|character| if breaks_line(character) { ' ' } else { character }).collect();
    let kept: String = kept.chars().filter(|character| is_harmless(*character)).collect();
    let name = without_ends(&kept);
    let mut characters = name.chars();
    let first = characters.next()?;
    let name = if matches!(first, '.' | '-') { format!("{STAND_IN}{}", characters.as_str()) } else { name.to_owned() };
    Some(shortened(&name))
}

/// Characters that part words, and must not part lines.
fn breaks_line(character: char) -> bool {
    matches!(character, '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Without spaces at either end, nor dots at the end: some systems drop them, and nobody sees them.
fn without_ends(text: &str) -> &str {
    text.trim_start().trim_end_matches(|character: char| character.is_whitespace() || character == '.')
}

/// At most [`MAX_NAME`] bytes. What is too long loses the end of its stem.
fn shortened(name: &str) -> String {
    if name.len() <= MAX_NAME {
        return name.to_owned();
    }
    let (stem, extension) = name.rfind('.').and_then(|dot| name.split_at_checked(dot)).unwrap_or((name, ""));
    let is_extension = extension.len() <= MAX_EXTENSION && !extension.contains(char::is_whitespace);
    let (stem, extension) = if is_extension { (stem, extension) } else { (name, "") };
    let kept = beginning(stem, MAX_NAME.saturating_sub(extension.len()));
    // Without an extension the cut may have bared a space or a dot.
    without_ends(&format!("{kept}{extension}")).to_owned()
}

/// As much of the text as fits into so many bytes. No character is cut, and none parted from the marks upon it, unless
/// the marks alone fill the room.
fn beginning(text: &str, bytes: usize) -> &str {
    let (mut whole, mut fits) = (0, 0);
    for (at, character) in text.char_indices() {
        if at > bytes {
            break;
        }
        fits = at;
        if character.width() != Some(0) {
            whole = at;
        }
    }
    let end = if whole == 0 { fits } else { whole };
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests;
