//! Which messages are read: the table in docs/OPENPGP.md is what this makes of real ones.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use client_vm::openpgp::decrypt::{DecryptError, Decryptor};
use sequoia_openpgp::types::{AEADAlgorithm, CompressionAlgorithm};

use crate::messages::{Form, message};
use crate::stage::{Gpg, Key, decrypt, is_skipped};

const PLAINTEXT: &[u8] = "Les coffres sont vides. \u{2014} 空の金庫\n".as_bytes();
const BEGIN: &str = "<!-- messages -->\n";
const END: &str = "<!-- end messages -->\n";
/// Set, the table in the document is written anew.
const BLESS: &str = "SPLITDROP_BLESS";

/// What a message is, who made it, and the message to each of the newsroom's keys.
type Row = (&'static str, String, [Vec<u8>; 2]);

fn by_gnupg(gpg: &Gpg) -> Vec<Row> {
    let compressions = ["none", "zip", "zlib", "bzip2"].map(|name| (name, vec!["--compress-algo", name]));
    let others = [
        ("armored", vec!["--armor"]),
        ("signed", vec!["--sign", "--local-user", "author"]),
        ("two recipients", vec!["--recipient", "author"]),
        ("recipients hidden", vec!["--throw-keyids"]),
        ("3DES", vec!["--cipher-algo", "3DES"]),
        ("without integrity protection", vec!["--rfc2440"]),
    ];
    let kinds = compressions.into_iter().map(|(name, arguments)| (format!("compression {name}"), arguments));
    let kinds = kinds.chain(others.into_iter().map(|(name, arguments)| (name.to_owned(), arguments)));
    kinds
        .map(|(kind, arguments)| ("GnuPG 2.2", kind, KEYS.map(|key| gpg.encrypt(key, &arguments, PLAINTEXT))))
        .collect()
}

fn by_sequoia() -> Vec<Row> {
    let compressed = |algorithm| Form { compression: Some(algorithm), ..Form::default() };
    let mut forms = vec![
        ("compression none", Form::default()),
        ("compression zip", compressed(CompressionAlgorithm::Zip)),
        ("compression zlib", compressed(CompressionAlgorithm::Zlib)),
        ("compression bzip2", compressed(CompressionAlgorithm::BZip2)),
        ("armored", Form { armor: true, ..Form::default() }),
        ("signed", Form { signed: true, ..Form::default() }),
        ("recipients hidden", Form { hidden: true, ..Form::default() }),
        ("padded", Form { padded: true, ..Form::default() }),
    ];
    let modes = [
        ("SEIPDv2 with EAX", AEADAlgorithm::EAX),
        ("SEIPDv2 with OCB", AEADAlgorithm::OCB),
        ("SEIPDv2 with GCM", AEADAlgorithm::GCM),
    ];
    // Each library of cryptography has some of them.
    let modes = modes.into_iter().filter(|(_, mode)| mode.is_supported());
    forms.extend(modes.map(|(kind, mode)| (kind, Form { aead: Some(mode), ..Form::default() })));
    forms
        .into_iter()
        .map(|(kind, form)| ("Sequoia 2.4", kind.to_owned(), KEYS.map(|key| message(&[key.cert()], form, PLAINTEXT))))
        .collect()
}

const KEYS: [Key; 2] = [Key::Rsa4096, Key::Curve25519];

fn outcome(decryptor: &dyn Decryptor, message: &[u8]) -> &'static str {
    match decrypt(decryptor, message) {
        Ok(plaintext) => {
            assert_eq!(plaintext, PLAINTEXT);
            "read"
        }
        Err(DecryptError::Unprotected) => "refused",
        Err(DecryptError::Unsupported(_)) => "not known",
        Err(error) => panic!("{}: {error:?}", decryptor.name()),
    }
}

fn rows(gpg: &Gpg) -> Vec<String> {
    let split = gpg.split();
    let mut rows = Vec::new();
    for (maker, kind, messages) in by_gnupg(gpg).into_iter().chain(by_sequoia()) {
        let mut row = format!("| {maker} | {kind} |");
        for (key, message) in KEYS.into_iter().zip(&messages) {
            for decryptor in [&key.file() as &dyn Decryptor, &split] {
                write!(row, " {} |", outcome(decryptor, message)).unwrap();
            }
        }
        rows.push(row);
    }
    rows
}

#[test]
fn the_table_says_what_is_read() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    gpg.run(&["--passphrase", "", "--quick-generate-key", "author", "rsa2048", "sign,encrypt"], b"");
    let rows = rows(&gpg);
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/OPENPGP.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = document.split_once(BEGIN).unwrap();
    let (table, after) = rest.split_once(END).unwrap();
    if cfg!(not(feature = "crypto-rust")) {
        // The table is for the library that is built in by default; another one makes fewer rows, and the same ones.
        for row in &rows {
            assert!(table.lines().any(|line| line == row), "not in {}: {row}", path.display());
        }
        return;
    }
    let head = "| made by | kind | RSA 4096, key file | RSA 4096, split-gpg | Curve25519, key file | Curve25519, split-gpg |\n\
                |---|---|---|---|---|---|\n";
    let real = format!("{head}{}\n", rows.join("\n"));
    let bless = std::env::var_os(BLESS).is_some();
    if bless {
        std::fs::write(&path, format!("{before}{BEGIN}{real}{END}{after}")).unwrap();
    }
    assert!(!bless, "the table is written anew and was not checked: look at the difference, and run this again");
    assert!(table == real, "the table in docs/OPENPGP.md is old: run this test with {BLESS}=1. It should be:\n{real}");
}
