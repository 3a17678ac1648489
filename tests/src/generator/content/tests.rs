use std::io::Cursor;

use super::*;

fn everything(mut from: impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    from.read_to_end(&mut all).unwrap();
    all
}

fn unzipped(zip: &[u8], name: &str) -> Vec<u8> {
    let number = |at: usize| u32::from_le_bytes(zip[at..at + 4].try_into().unwrap()) as usize;
    let end = zip.len() - 22;
    assert_eq!(&zip[end..end + 4], b"PK\x05\x06");
    let (directory_length, directory) = (number(end + 12), number(end + 16));
    assert_eq!(directory + directory_length, end);
    assert_eq!(&zip[directory..directory + 4], b"PK\x01\x02");
    assert_eq!(&zip[directory + 6..directory + 32], &zip[4..30], "both headers say the same");
    assert_eq!(&zip[directory + 46..end], name.as_bytes());
    assert_eq!(&zip[30..30 + name.len()], name.as_bytes());
    let contents = &zip[30 + name.len()..directory];
    let mut crc = flate2::Crc::new();
    crc.update(contents);
    assert_eq!((number(14), number(18), number(22)), (crc.sum() as usize, contents.len(), contents.len()));
    contents.to_vec()
}

#[test]
fn any_length_can_be_had_and_unwraps_to_the_contents() {
    let mut prng = Prng::new(3);
    for form in [Form::Text, Form::Gzip, Form::Zip] {
        let edges = [65_535_u64, 65_540, 131_080, 200_000].into_iter().flat_map(|edge| edge - 40..edge + 160);
        let lengths = (form.smallest()..form.smallest() + 700).chain(edges.step_by(3)).chain([1_000_003]);
        for length in lengths {
            let plaintext = Plaintext::try_new(prng.next_u64(), form, length).unwrap();
            let wrapped = everything(plaintext.wrapped());
            let contents = everything(plaintext.contents());
            assert_eq!((wrapped.len() as u64, plaintext.wrapped_length()), (length, length), "{form:?}");
            assert_eq!(contents.len() as u64, plaintext.length());
            let unwrapped = match form {
                Form::Text => wrapped,
                Form::Zip => unzipped(&wrapped, plaintext.name().unwrap()),
                Form::Gzip => {
                    let mut decoder = flate2::read::GzDecoder::new(Cursor::new(wrapped));
                    let unwrapped = everything(&mut decoder);
                    let name = decoder.header().unwrap().filename().map(<[u8]>::to_vec);
                    assert_eq!(name.as_deref(), plaintext.name().map(str::as_bytes));
                    unwrapped
                }
            };
            assert!(unwrapped == contents, "{form:?} {length}");
        }
    }
}

#[test]
fn text_is_utf_8_and_never_all_ascii() {
    for seed in 0..50 {
        for length in [8, 9, 10, 11, 40, 4_095, 4_096, 4_097, 20_000] {
            let text = everything(Plaintext::try_new(seed, Form::Text, length).unwrap().contents());
            assert!(!String::from_utf8(text).unwrap().is_ascii(), "{seed} {length}");
        }
    }
}

#[test]
fn a_seed_means_the_same_text_for_ever() {
    let text = everything(Plaintext::try_new(1, Form::Text, 60).unwrap().contents());
    assert_eq!(String::from_utf8(text).unwrap(), "Αθήνα, the silent wharf wrote to the idle reed.\n\nthe lo");
}

#[test]
fn names_are_plain_and_short_and_differ() {
    let names: std::collections::HashSet<_> = (0..2_000).map(file_name).collect();
    assert!(names.len() > 1_900);
    for name in names {
        assert!(length_of(&name) <= LONGEST_NAME);
        assert!(name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter)), "{name}");
    }
}

#[test]
fn too_little_is_refused() {
    for form in [Form::Text, Form::Gzip, Form::Zip] {
        let error = Plaintext::try_new(1, form, form.smallest() - 1).unwrap_err();
        assert!(matches!(error, PlaintextError::TooShort { .. }), "{error}");
    }
}
