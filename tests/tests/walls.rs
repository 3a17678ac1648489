//! The dependency walls: which crates a part of the project must never be linked with, directly or through others.
//!
//! They are checked against what `cargo tree -e normal` says of each package and the lock file as it is: with the default
//! features, and the client with `gpg-agent` too, which is built for those who want it. Build scripts and tests are not
//! looked at: they are not part of a program that runs in a VM.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What speaks to a network: HTTP, TLS, DNS, SOCKS, SSH, Tor. A name that ends in `*` stands for all that begin so.
const NETWORK: &[&str] = &[
    "actix*",
    "arti*",
    "async-h1",
    "attohttpc",
    "aws-lc*",
    "axum*",
    "boring*",
    "c-ares*",
    "curl*",
    "dns*",
    "fast-socks5",
    "h2",
    "h3*",
    "hickory*",
    "http",
    "http-*",
    "httparse",
    "hyper*",
    "isahc*",
    "libp2p*",
    "libssh*",
    "minreq",
    "native-tls",
    "openssl*",
    "quiche",
    "quinn*",
    "reqwest*",
    "resolv*",
    "ring",
    "russh*",
    "rustls*",
    "s2n*",
    "security-framework*",
    "smoltcp",
    "socks*",
    "ssh2",
    "surf",
    "tiny_http",
    "tokio-native-tls",
    "tokio-openssl",
    "tokio-rustls",
    "tokio-socks",
    "tokio-tungstenite",
    "tonic*",
    "tor-*",
    "tower-http",
    "trust-dns*",
    "tungstenite",
    "ureq*",
    "warp",
    "webpki*",
];

/// What keeps data, opens messages or speaks to a person: databases, OpenPGP, terminals.
const STORE_PGP_TERMINAL: &[&str] = &[
    "clap*",
    "console",
    "crossterm*",
    "cursive*",
    "dialoguer",
    "diesel*",
    "gpg*",
    "gpgme*",
    "indicatif*",
    "inquire",
    "libsqlite3-sys",
    "pgp",
    "ratatui*",
    "redb",
    "reedline",
    "rpassword",
    "rpgp",
    "rtoolbox",
    "rusqlite*",
    "rustyline*",
    "sequoia*",
    "sled",
    "sqlite*",
    "sqlx*",
    "termion",
    "tui*",
];

/// What opens messages otherwise than with the default features: libraries of cryptography of the machine, and the agent's
/// protocol.
const NOT_BY_DEFAULT: &[&str] =
    &["bindgen", "botan*", "capnp*", "gpgme*", "nettle*", "openssl*", "sequoia-gpg-agent", "sequoia-ipc"];

/// What reaches beyond the memory of a program: runtimes, system calls, chance, clocks.
const OUTSIDE_WORLD: &[&str] = &[
    "async-std*",
    "chrono*",
    "fastrand",
    "futures*",
    "getrandom",
    "jiff*",
    "libc",
    "linux-raw-sys",
    "mio",
    "nix",
    "polling",
    "rand",
    "rand_*",
    "rustix",
    "signal-hook*",
    "smol*",
    "socket2",
    "time",
    "tokio*",
    "tracing*",
    "windows*",
];

/// What one package must not be linked with.
struct Wall {
    package: &'static str,
    features: Option<&'static str>,
    crates: &'static [&'static [&'static str]],
    packages: &'static [&'static str],
}

const WALLS: &[Wall] = &[
    Wall {
        package: "client-vm",
        features: None,
        crates: &[NETWORK, NOT_BY_DEFAULT],
        packages: &["proxy-vm", "staging"],
    },
    Wall { package: "client-vm", features: Some("gpg-agent"), crates: &[NETWORK], packages: &["proxy-vm", "staging"] },
    Wall {
        package: "proxy-vm",
        features: None,
        crates: &[STORE_PGP_TERMINAL],
        packages: &["client-vm", "control", "staging"],
    },
    Wall {
        package: "protocol",
        features: None,
        crates: &[NETWORK, STORE_PGP_TERMINAL, OUTSIDE_WORLD],
        packages: &["client-vm", "control", "proxy-vm", "qubes-rpc", "staging"],
    },
    Wall {
        package: "qubes-rpc",
        features: None,
        crates: &[NETWORK, STORE_PGP_TERMINAL],
        packages: &["client-vm", "control", "proxy-vm", "staging"],
    },
    Wall {
        package: "control",
        features: None,
        crates: &[NETWORK, STORE_PGP_TERMINAL],
        packages: &["client-vm", "proxy-vm", "qubes-rpc", "staging"],
    },
];

impl Wall {
    /// The crates of `tree` that are on the wrong side. `tree` is what `cargo tree --prefix none` prints.
    fn breaches(&self, tree: &str) -> BTreeSet<String> {
        let forbidden = || self.crates.iter().copied().flatten().chain(self.packages);
        names(tree).filter(|name| forbidden().any(|pattern| fits(name, pattern))).map(str::to_owned).collect()
    }
}

/// The crates of a tree: the first word of each line.
fn names(tree: &str) -> impl Iterator<Item = &str> {
    tree.lines().filter_map(|line| line.split_whitespace().next())
}

/// Crates are one, whether spelled with `-` or `_`.
fn fits(name: &str, pattern: &str) -> bool {
    let (name, pattern) = (name.replace('_', "-"), pattern.replace('_', "-"));
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// What cargo prints. Offline: whatever these tests were built from is here already.
fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output =
        Command::new(cargo).args(arguments).args(["--locked", "--offline"]).current_dir(workspace()).output().unwrap();
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn no_package_is_linked_with_what_its_wall_keeps_out() {
    for wall in WALLS {
        let mut arguments = vec!["tree", "-e", "normal", "--prefix", "none", "-p", wall.package];
        arguments.extend(wall.features.iter().flat_map(|features| ["--features", features]));
        let tree = cargo(&arguments);
        assert!(names(&tree).any(|name| name == wall.package), "no tree of {}:\n{tree}", wall.package);
        // A feature that brings nothing would not be looked at.
        assert_eq!(wall.features.is_some(), names(&tree).any(|name| name == "sequoia-gpg-agent"), "{arguments:?}");
        let breaches = wall.breaches(&tree);
        assert!(
            breaches.is_empty(),
            "{} is linked with {breaches:?}; `cargo {} -i CRATE` shows by whom",
            wall.package,
            arguments.join(" ")
        );
    }
}

#[test]
fn only_the_protocol_names_the_encoding_crate() {
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version", "1"])).unwrap();
    let mut naming = BTreeSet::new();
    for package in metadata["packages"].as_array().unwrap() {
        let dependencies = package["dependencies"].as_array().unwrap();
        if dependencies.iter().any(|dependency| dependency["name"] == "bincode") {
            naming.insert(package["name"].as_str().unwrap());
        }
    }
    assert_eq!(naming, BTreeSet::from(["protocol"]));
}

#[test]
fn only_one_file_of_the_protocol_names_the_encoding_crate() {
    let mut naming = Vec::new();
    let mut folders = vec![workspace().join("protocol/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if names_a_crate(&std::fs::read_to_string(&path).unwrap(), "bincode") {
                naming.push(path.strip_prefix(workspace()).unwrap().display().to_string());
            }
        }
    }
    assert_eq!(naming, ["protocol/src/codec.rs"]);
}

/// Whether code names a crate: in a path, or by another name in `use` or `extern crate`. Comments may speak of it.
fn names_a_crate(code: &str, name: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    code.lines().map(str::trim).filter(|line| !line.starts_with("//")).any(|line| {
        line.match_indices(name).any(|(at, _)| {
            let (before, after) = (line.get(..at).unwrap_or_default(), line.get(at + name.len()..).unwrap_or_default());
            let is_whole = !before.ends_with(is_part) && !after.starts_with(is_part);
            let is_declared = ["use", "crate", "::", "{", ","].iter().any(|word| before.trim_end().ends_with(word));
            let is_used = ["::", "as "].iter().any(|word| after.trim_start().starts_with(word));
            is_whole && (is_used || is_declared)
        })
    })
}

#[test]
fn a_crate_is_found_however_it_is_named() {
    for code in [
        "bincode::serde::encode(x)",
        "let x = ::bincode :: config();",
        "use bincode as x;",
        "    pub(crate) use bincode as x;",
        "use ::bincode as x;",
        "extern crate bincode as x;",
        "use {serde, bincode as x};",
        "use {bincode as x};",
        "bincode as x,",
        "use bincode;",
    ] {
        assert!(names_a_crate(code, "bincode"), "{code}");
    }
    for code in
        ["// bincode::encode", "/// As bincode does.", "my_bincode::x", "bincodec::x", "let bincode = 1;", "mod x;"]
    {
        assert!(!names_a_crate(code, "bincode"), "{code}");
    }
}

/// A wall that finds nothing must be one that would find something.
#[test]
fn a_forbidden_crate_is_found_in_a_made_up_tree() {
    let wall = |package: &str| WALLS.iter().find(|wall| wall.package == package && wall.features.is_none()).unwrap();
    let breaches = |package: &str, tree: &str| wall(package).breaches(tree).into_iter().collect::<Vec<_>>();
    let client = "client-vm v0.1.0 (/somewhere/client-vm)\nserde v1.0.0\nhyper-util v0.1.0\nhttp v1.0.0 (*)\n\
                  tokio_socks v0.5.0\nproxy-vm v0.1.0 (/somewhere/proxy-vm)\n";
    assert_eq!(breaches("client-vm", client), ["http", "hyper-util", "proxy-vm", "tokio_socks"]);
    let other = "client-vm v0.1.0\nsequoia-openpgp v2.0.0\nnettle-sys v2.0.0\nopenssl v0.10.0\nsequoia-ipc v0.36.0\n";
    assert_eq!(breaches("client-vm", other), ["nettle-sys", "openssl", "sequoia-ipc"]);
    let proxy = "proxy-vm v0.1.0 (/somewhere/proxy-vm)\nreqwest v0.13.0\nclap_builder v4.0.0\n\
                 libsqlite3-sys v0.30.0\nsequoia-openpgp v2.0.0\ncontrol v0.1.0 (/somewhere/control)\n";
    assert_eq!(breaches("proxy-vm", proxy), ["clap_builder", "control", "libsqlite3-sys", "sequoia-openpgp"]);
    assert_eq!(breaches("protocol", "protocol v0.1.0\nserde v1.0.0\ntokio-util v0.7.0\n"), ["tokio-util"]);
}

/// And one that stops only what it means.
#[test]
fn a_name_that_is_only_similar_passes() {
    let client = WALLS.iter().find(|wall| wall.package == "client-vm").unwrap();
    let tree = "client-vm v0.1.0\nshttp v1.0.0\nstring v1.0.0\nmonitoring v1.0.0\nh2o v1.0.0\nunicode-width v0.2.2\n";
    assert_eq!(client.breaches(tree), BTreeSet::new());
}
