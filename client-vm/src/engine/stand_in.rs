//! Calls in the place of qrexec's: shell scripts that do what a test wants.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use protocol::frame::frame_bytes;
use protocol::handshake::encode_welcome;
use protocol::value::SoftwareVersion;
use protocol::{Hello, Limits, Scope, Welcome};
use qubes_rpc::PROXY_SERVICE;
use qubes_rpc::name::ServiceName;
use qubes_rpc::places::Place;
use qubes_rpc::qrexec::{Qrexec, QrexecCall};

/// Only for what does not happen when all is well.
pub(super) const FAILED: Duration = Duration::from_secs(60);

/// Opens a call of `scope` whose proxy shakes hands, does what `script` says, and then stays until it is killed.
pub(super) async fn open_call(directory: &Path, scope: Scope, script: &str, place: Place) -> QrexecCall {
    let software = SoftwareVersion::try_new("0.0.0-test").unwrap();
    let ready = Welcome::Ready { scope, limits: Limits::OURS, software: software.clone() };
    let (program, welcome) = (directory.join(format!("call-{}", scope.name())), directory.join(scope.name()));
    std::fs::write(&welcome, frame_bytes(&encode_welcome(&ready).unwrap()).unwrap()).unwrap();
    let script = format!("#!/bin/sh\ncat '{}'\n{script}\nexec sleep 600\n", welcome.display());
    // Another process writes it: what this one has open for writing, whatever it forks meanwhile may have open too, and
    // what is open for writing cannot be executed.
    let write = r#"printf %s "$2" > "$1" && chmod 700 "$1""#;
    let written = Command::new("/bin/sh").args(["-c", write, "sh"]).arg(&program).arg(script).status().unwrap();
    assert!(written.success());
    let hello = Hello { scope, limits: Limits::OURS, api_level: None, software };
    let service = ServiceName::try_new(PROXY_SERVICE, scope.name()).unwrap();
    Qrexec { program }.open(&"sd-proxy".parse().unwrap(), &service, &hello, FAILED, place).await.unwrap()
}
