//! Says what is missing before a dependency's build fails with less to say.

use std::io::Write as _;

fn main() -> Result<(), String> {
    let asked = writeln!(std::io::stdout(), "cargo::rerun-if-changed=build.rs\ncargo::rerun-if-env-changed=PATH");
    asked.map_err(|error| error.to_string())?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if std::env::var_os("CARGO_FEATURE_GPG_AGENT").is_some() && !is_there("capnp") {
        return Err("the feature `gpg-agent` needs the program capnp to be built: apt-get install capnproto".to_owned());
    }
    Ok(())
}
