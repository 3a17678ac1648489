//! What copies are called.
//!
//! **Invariant:** a name is one harmless component of a path, of 1 to 255 bytes ([`shown_name`]), whatever a server or a
//! source has called things.

use protocol::value::OrderNumber;

use crate::shown_name::shown_name;

/// The longest name, in bytes: as much as a file system takes.
const MAX_NAME: usize = 255;
/// Stands for a designation of which nothing can be shown.
const SOURCE: &str = "source";

/// The name of a file's copy: the one that its source gave it, else one of its place.
pub(crate) fn of_file(name: Option<&str>, designation: &str, order: OrderNumber) -> String {
    name.and_then(|name| shown_name(name.as_bytes())).unwrap_or_else(|| of_place(designation, order))
}

/// The name of a message's or a reply's copy.
pub(crate) fn of_text(designation: &str, order: OrderNumber) -> String {
    with_end(&of_place(designation, order), ".txt")
}

/// The name of a transcript.
pub(crate) fn of_conversation(designation: &str) -> String {
    with_end(&of_source(designation), ".txt")
}

/// The same name for the `at`-th of those that would be called so, from 1 on: the second is `name (2).ext`.
pub(crate) fn numbered(name: &str, at: u32) -> String {
    if at <= 1 {
        return name.to_owned();
    }
    // A name that begins with its only dot has no extension.
    let dot = name.rfind('.').filter(|dot| *dot > 0);
    let (stem, extension) = dot.and_then(|dot| name.split_at_checked(dot)).unwrap_or((name, ""));
    let end = format!(" ({at}){extension}");
    // One that is nothing but extension loses the end of that.
    if end.len() >= MAX_NAME { with_end(name, &format!(" ({at})")) } else { with_end(stem, &end) }
}

fn of_place(designation: &str, order: OrderNumber) -> String {
    with_end(&of_source(designation), &format!("-{}", order.get()))
}

fn of_source(designation: &str) -> String {
    shown_name(designation.as_bytes()).unwrap_or_else(|| SOURCE.to_owned())
}

/// As much of the stem as leaves room for this end.
fn with_end(stem: &str, end: &str) -> String {
    let mut room = MAX_NAME.saturating_sub(end.len()).min(stem.len());
    while !stem.is_char_boundary(room) {
        room = room.saturating_sub(1);
    }
    format!("{}{end}", stem.get(..room).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(number: u64) -> OrderNumber {
        OrderNumber::try_new(number).unwrap()
    }

    #[test]
    fn a_copy_has_the_name_that_its_source_gave_it_or_one_of_its_place() {
        assert_eq!(of_file(Some("ledger.pdf"), "candid marmot", order(4)), "ledger.pdf");
        assert_eq!(of_file(None, "candid marmot", order(4)), "candid marmot-4");
        assert_eq!(of_text("candid marmot", order(12)), "candid marmot-12.txt");
        assert_eq!(of_conversation("candid marmot"), "candid marmot.txt");
    }

    /// Case F8.
    #[test]
    fn f8_no_designation_and_no_name_leads_out_of_the_folder() {
        let long = "n".repeat(5_000);
        let hostile =
            ["../../.config/autostart/x.desktop", "/home/user/x", "..", "", "a\nb", "\u{202e}x", "-rf", &long];
        for name in hostile {
            for made in [of_file(Some(name), name, order(1)), of_text(name, order(1)), of_conversation(name)] {
                for at in [1, 2, u32::MAX] {
                    let made = numbered(&made, at);
                    assert_eq!(shown_name(made.as_bytes()).as_deref(), Some(made.as_str()), "{name:?}");
                }
            }
        }
        assert_eq!(of_text("..", order(3)), "source-3.txt");
    }

    #[test]
    fn a_number_stands_before_the_extension_and_the_name_stays_short_enough() {
        assert_eq!(numbered("a.tar.gz", 1), "a.tar.gz");
        assert_eq!(numbered("a.tar.gz", 2), "a.tar (2).gz");
        assert_eq!(numbered("ledger", 11), "ledger (11)");
        let long = format!("{}.docx", "ß".repeat(125));
        assert_eq!(long.len(), 255);
        let second = numbered(&long, 2);
        assert!(second.len() <= 255 && second.ends_with("ß (2).docx"), "{second}");
        let all_extension = format!("a.{}", "b".repeat(253));
        assert!(numbered(&all_extension, 2).len() <= 255);
    }
}
