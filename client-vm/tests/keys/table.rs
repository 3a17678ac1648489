//! The table, and the tests.

use std::path::Path;

use client_vm::openpgp::encrypt::encrypt;
use client_vm::openpgp::recipient::{KeyError, Recipient, fingerprint_of};

use sequoia_openpgp::Cert;
use sequoia_openpgp::parse::Parse as _;
use sequoia_openpgp::policy::{HashAlgoSecurity, StandardPolicy};
use sequoia_openpgp::types::HashAlgorithm;

use crate::made::{self, Made, TODAY};
use crate::{NOW, at, skips_gpg};

const BEGIN: &str = "<!-- keys -->\n";
const END: &str = "<!-- end keys -->\n";
/// Line ends of both kinds and letters that are not ASCII: they must come out as they went in.
const TEXT: &str = "Where can we meet?\r\nIm Café, um 20 Uhr 🦆\n\n";

fn recipient(made: &Made) -> Result<Recipient, KeyError> {
    Recipient::try_new(&made.key, &fingerprint_of(&made.key)?, made.now)
}

fn row(made: &Made) -> String {
    let (taken, why) = match recipient(made) {
        Ok(_) => ("yes", made.remark.to_owned()),
        Err(refused) => ("no", refused.to_string()),
    };
    format!("| {} | {taken} | {why} |\n", made.what)
}

#[test]
fn the_table_of_keys_is_true_and_gnupg_reads_what_is_encrypted() {
    if skips_gpg() {
        return;
    }
    let keys = made::all();
    let table = format!("| key | taken | why |\n|---|---|---|\n{}", keys.iter().map(row).collect::<String>());
    in_the_document(&table);

    // A newsroom's key, so that there are two recipients.
    let newsroom = keys.iter().find(|made| made.what == "RSA, 2048 bits").unwrap();
    let newsroom_key = recipient(newsroom).unwrap();
    let mut read = 0;
    for made in &keys {
        let (Ok(source), Some(home)) = (recipient(made), &made.home) else { continue };
        let message = encrypt(TEXT, &[&source, &newsroom_key]).unwrap();
        for home in [home, newsroom.home.as_ref().unwrap()] {
            let out = home.run(TODAY, &["--batch", "--decrypt"], message.as_bytes());
            assert_eq!(String::from_utf8(out).unwrap(), TEXT, "{}", made.what);
        }
        read += 1;
    }
    assert!(read >= 5, "only {read} keys of GnuPG's are taken");
}

#[test]
fn a_source_whose_key_is_signed_with_sha_1_can_be_answered() {
    if skips_gpg() {
        return;
    }
    let made = made::by_sha1();
    assert!(recipient(&made).is_ok());
    // It is the exception that makes it so, and less than the whole one would not do: its user ID is long.
    let cert = Cert::from_bytes(&made.key).unwrap();
    let signatures: Vec<_> = cert.userids().flat_map(|id| id.self_signatures()).collect();
    assert!(!signatures.is_empty());
    assert!(signatures.iter().all(|signature| signature.hash_algo() == HashAlgorithm::SHA1));
    let mut policy = StandardPolicy::at(at(NOW));
    assert!(cert.with_policy(&policy, at(NOW)).is_err());
    policy.accept_hash_property(HashAlgorithm::SHA1, HashAlgoSecurity::SecondPreImageResistance);
    assert!(cert.with_policy(&policy, at(NOW)).is_err());
    policy.accept_hash(HashAlgorithm::SHA1);
    assert!(cert.with_policy(&policy, at(NOW)).is_ok());
}

#[test]
fn a_curve_that_this_build_does_not_know_is_told_as_that() {
    if skips_gpg() {
        return;
    }
    let made = made::brainpool();
    match recipient(&made) {
        Ok(_) if cfg!(feature = "crypto-rust") => panic!("the cryptography in Rust has learnt the curve"),
        Ok(source) => {
            let message = encrypt(TEXT, &[&source]).unwrap();
            let out = made.home.as_ref().unwrap().run(TODAY, &["--batch", "--decrypt"], message.as_bytes());
            assert_eq!(String::from_utf8(out).unwrap(), TEXT);
        }
        Err(refused) => assert_eq!(refused, KeyError::Unsupported { algorithm: "ECDSA, 256 bits".to_owned() }),
    }
}

/// Compares with the document, or writes it.
fn in_the_document(table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/OPENPGP.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = document.split_once(BEGIN).unwrap();
    let (written, after) = rest.split_once(END).unwrap();
    let bless = std::env::var_os("SPLITDROP_BLESS").is_some();
    if bless {
        std::fs::write(&path, format!("{before}{BEGIN}\n{table}\n{END}{after}")).unwrap();
    }
    assert!(!bless, "the table is written anew and was not checked: look at the difference, and run this again");
    assert_eq!(written.trim(), table.trim(), "docs/OPENPGP.md is not true any more: SPLITDROP_BLESS=1 writes it anew");
}
