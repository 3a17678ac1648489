use proptest::prelude::*;

use super::*;

fn shown(raw: &str) -> String {
    shown_name(raw.as_bytes()).unwrap()
}

#[test]
fn an_honest_name_stays_as_it_is() {
    for name in [
        "report.odt",
        "Bericht über Möwen (2).tar.gz",
        "отчёт.pdf",
        "海鸥 報告.docx",
        "تقرير.pdf",
        "रिपोर्ट.txt",
        "Mo\u{308}we.png",
        "no extension",
        "a..b",
        "semi-colon; $(x) 'quoted'.sh",
        "_",
        "🦆.jpg",
    ] {
        assert_eq!(shown(name), name);
    }
}

#[test]
fn f8_of_a_path_the_last_component_counts() {
    assert_eq!(shown("../../.config/autostart/x.desktop"), "x.desktop");
    assert_eq!(shown("/home/user/x"), "x");
    assert_eq!(shown(r"C:\Users\me\x.doc"), "x.doc");
    assert_eq!(shown(r"..\..\x.doc"), "x.doc");
    assert_eq!(shown("folder/x.doc/"), "x.doc");
    assert_eq!(shown("folder/.."), "folder");
}

#[test]
fn f8_what_leaves_nothing_has_no_name() {
    for nothing in [
        "",
        ".",
        "..",
        "...",
        "/",
        "//",
        r"\",
        "../..",
        "\0",
        "\n",
        " ",
        " . ",
        "\u{202e}",
        "\u{200b}\u{feff}",
        "\u{a0}.",
    ] {
        assert_eq!(shown_name(nothing.as_bytes()), None, "{nothing:?}");
    }
}

#[test]
fn f8_a_name_neither_hides_nor_is_an_option() {
    assert_eq!(shown("-rf"), "_rf");
    assert_eq!(shown("--help"), "_-help");
    assert_eq!(shown(".bashrc"), "_bashrc");
    assert_eq!(shown("..bashrc"), "_.bashrc");
    assert_eq!(shown("  .bashrc"), "_bashrc");
    assert_eq!(shown("\u{200b}-rf"), "_rf");
    assert_eq!(shown("report.odt. . "), "report.odt");
    assert_eq!(shown("\u{3000}report.odt\u{a0}"), "report.odt");
}

#[test]
fn f8_what_cannot_be_seen_goes() {
    assert_eq!(shown("invoice\0.exe"), "invoice.exe");
    assert_eq!(shown("two\nlines\r\n.txt"), "two lines  .txt");
    assert_eq!(shown("para\u{2029}graph.txt"), "para graph.txt");
    assert_eq!(shown("exe\u{202e}gpj.pdf"), "exegpj.pdf");
    assert_eq!(shown("\u{2067}a\u{2069}\u{200f}\u{61c}.txt"), "a.txt");
    assert_eq!(shown("a\u{1b}[2Jb\u{9b}c\u{7f}.txt"), "a[2Jbc.txt");
    assert_eq!(shown("re\u{ad}port\u{feff}.o\u{200d}dt\u{e0041}"), "report.odt");
}

#[test]
fn f8_what_is_not_utf_8_is_latin_1() {
    assert_eq!(shown_name(b"M\xf6we.txt").unwrap(), "Möwe.txt");
    assert_eq!(shown_name(b"\xff\xfe/..\\a\x80\x9fb.txt").unwrap(), "ab.txt");
    assert_eq!(shown_name("Möwe.txt".as_bytes()).unwrap(), "Möwe.txt");
}

#[test]
fn f8_a_long_name_keeps_its_extension_and_its_letters_whole() {
    let name = shown(&format!("{}.docx", "x".repeat(5_000)));
    assert_eq!(name, format!("{}.docx", "x".repeat(250)));
    let name = shown(&format!("{}.pdf", "ä".repeat(2_500)));
    assert_eq!(name, format!("{}.pdf", "ä".repeat(125)));
    let name = shown(&format!("{}.pdf", "海".repeat(2_500)));
    assert_eq!(name, format!("{}.pdf", "海".repeat(83)));
    // A letter keeps its mark, or goes with it.
    let name = shown(&format!("a{}.pdf", "e\u{301}".repeat(2_000)));
    assert_eq!(name, format!("a{}.pdf", "e\u{301}".repeat(83)));
    // Marks alone are cut where it must be.
    let name = shown(&format!("a{}.pdf", "\u{301}".repeat(2_000)));
    assert_eq!(name, format!("a{}.pdf", "\u{301}".repeat(125)));
    // What is no extension is cut like everything else.
    assert_eq!(shown(&"x".repeat(5_000)), "x".repeat(255));
    assert_eq!(shown(&format!("a.{}", "x".repeat(5_000))), format!("a.{}", "x".repeat(253)));
    assert_eq!(shown(&format!("{} end. of it", "x".repeat(300))), "x".repeat(255));
    // The cut bares neither a space nor a dot.
    assert_eq!(shown(&format!("{} . {}", "x".repeat(253), "y".repeat(250))), "x".repeat(253));
    assert_eq!(shown(&"x".repeat(255)), "x".repeat(255));
}

proptest! {
    #[test]
    fn any_bytes_give_one_clean_component_that_stays_what_it_is(
        raw in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..700),
            // Text made of what matters here.
            proptest::collection::vec(prop_oneof![
                Just("."), Just(" "), Just("-"), Just("/"), Just("\\"), Just("\0"), Just("\n"), Just("\u{202e}"),
                Just("\u{301}"), Just("ä"), Just("海"), Just("🦆"), Just("x"), Just("\u{a0}"), Just("long enough "),
            ], 0..300).prop_map(|parts| parts.concat().into_bytes()),
        ],
    ) {
        if let Some(name) = shown_name(&raw) {
            prop_assert!(!name.is_empty() && name.len() <= 255);
            prop_assert!(!name.contains(['/', '\\', '\0']));
            prop_assert!(name.chars().all(is_harmless));
            prop_assert!(!name.starts_with(['.', '-']) && !name.ends_with('.'));
            prop_assert_eq!(name.trim(), name.as_str());
            prop_assert_eq!(shown_name(name.as_bytes()), Some(name));
        }
    }
}
