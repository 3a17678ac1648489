//! Stands in for `qubes-gpg-client`: says when it is called and when it is done, and waits where a test wants that.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::Mode;
use staging::environment::KeyAccess;
use staging::generator::NewsroomKey;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::unix::pipe::{OpenOptions, Receiver};

use crate::support::SAID;

/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(120);

/// What comes before anything else. Its folder is in the variables of all that it starts.
const HEAD: &str = r#"
[ -n "$STAND_IN" ] || STAND_IN='FOLDER' exec "$0" "$@"
[ "$QUBES_GPG_DOMAIN" = sd-gpg ] || { echo "ERROR: Destination domain not defined! Set it." >&2; exit 1; }
"#;

/// The same of what is called in the key's VM: its arguments are in the first lines.
const HEAD_OF_SERVICE: &str = r#"
[ -n "$STAND_IN" ] || STAND_IN='FOLDER' exec "$0"
IFS= read -r count
set --
while [ "$count" -gt 0 ]; do IFS= read -r word; set -- "$@" "$word"; count=$((count - 1)); done
"#;

/// Calls the key's VM by qrexec.
const CALL: &str = r#"
{ printf '%s\n' "$#" "$@"; cat; } | "$STAND_IN/caller" "$QUBES_GPG_DOMAIN" qubes.Gpg
"#;

/// A report is one write, and does not wait for a reader; only decryptions wait at the gate.
const REPORTS: &str = r#"
case "$*" in
*--decrypt*) what=decrypt ;;
*--list-secret-keys*) what=list ;;
*--export*) what=export ;;
*) echo "Forbidden option" >&2; exit 1 ;;
esac
report() { echo "$1 $what" 1<>"$STAND_IN/reports"; }
report begin
[ $what != decrypt ] || flock --shared "$STAND_IN/gate" true
if [ -e "$STAND_IN/fail" ]; then report end; exit "$(cat "$STAND_IN/fail")"; fi
"#;

/// Swallows the message, and does as GnuPG would.
const FAKE: &str = r#"
say() { echo "[GNUPG:] $1" >&2; }
case $what in
decrypt)
    cat >/dev/null
    say 'BEGIN_DECRYPTION'; say 'DECRYPTION_INFO 2 9 0'; say 'PLAINTEXT 62 0 '
    printf %s 'SAID'
    say 'DECRYPTION_OKAY'; say 'GOODMDC'; say 'END_DECRYPTION' ;;
*) say 'KEY_CONSIDERED 0' ;;
esac
report end
"#;

/// Real GnuPG, in the home directory that is the key's VM.
const REAL: &str = r#"
gpg --homedir "$STAND_IN/gnupg" --no-tty --disable-dirmngr --batch --exit-on-status-write-error "$@"
code=$?
report end
exit $code
"#;

/// A stand-in, and what it reports.
#[derive(Debug)]
pub(crate) struct StandIn {
    folder: TempDir,
    gate: Option<Flock<File>>,
    reports: Lines<BufReader<Receiver>>,
    running: usize,
    most: usize,
    has_home: bool,
}

impl StandIn {
    /// One that says [`SAID`] whatever it is given.
    pub(crate) fn fake() -> Self {
        Self::new(&FAKE.replace("SAID", SAID))
    }

    /// One that says [`SAID`], but whose call breaks with a message of so many bytes or more.
    pub(crate) fn fake_that_breaks_with(bytes: usize) -> Self {
        let swallow = format!("[ \"$(wc -c)\" -lt {bytes} ] || {{ report end; exit 127; }}");
        Self::new(&FAKE.replace("cat >/dev/null", &swallow).replace("SAID", SAID))
    }

    /// One that calls GnuPG, whose home has the newsroom's key. No agent is left behind.
    pub(crate) fn real(key: NewsroomKey) -> Self {
        let mut stand_in = Self::new(REAL);
        let home = stand_in.home();
        std::fs::create_dir(&home).unwrap();
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o700)).unwrap();
        stand_in.has_home = true;
        stand_in.import(key);
        stand_in
    }

    /// From now on it is what serves calls in the key's VM, and what the client calls makes such calls, through `caller`.
    pub(crate) fn behind_qrexec(&self, caller: &Path) {
        let program = std::fs::read_to_string(self.program()).unwrap();
        let [head, service_head] = [HEAD, HEAD_OF_SERVICE].map(|head| self.in_its_folder(head));
        write_script(&self.service(), &program.replace(&head, &service_head));
        std::os::unix::fs::symlink(caller, self.folder().join("caller")).unwrap();
        std::fs::remove_file(self.program()).unwrap();
        write_script(&self.program(), &format!("#!/bin/sh\n{head}{CALL}"));
    }

    /// A key comes to the key's VM.
    pub(crate) fn import(&self, key: NewsroomKey) {
        let file = self.folder().join("newsroom.asc");
        std::fs::write(&file, key.secret_armor()).unwrap();
        let mut import = Command::new("gpg");
        import.arg("--homedir").arg(self.home()).args(["--batch", "--no-tty", "--quiet", "--import"]).arg(file);
        assert!(import.stdin(Stdio::null()).status().unwrap().success());
    }

    fn new(script: &str) -> Self {
        // The path is short, since an agent's socket is below it.
        let folder = tempfile::Builder::new().prefix("sd").tempdir_in("/tmp").unwrap();
        let reports = folder.path().join("reports");
        nix::unistd::mkfifo(&reports, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let reports = OpenOptions::new().read_write(true).open_receiver(reports).unwrap();
        File::create(folder.path().join("gate")).unwrap();
        let stand_in =
            Self { folder, gate: None, reports: BufReader::new(reports).lines(), running: 0, most: 0, has_home: false };
        let head = stand_in.in_its_folder(HEAD);
        write_script(&stand_in.program(), &format!("#!/bin/sh\n{head}{REPORTS}\n{script}\n"));
        stand_in
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.folder().join("qubes-gpg-client")
    }

    /// What serves calls in the key's VM, where it does.
    pub(crate) fn service(&self) -> PathBuf {
        self.folder().join("qubes.Gpg")
    }

    fn in_its_folder(&self, script: &str) -> String {
        script.replace("FOLDER", &self.folder().display().to_string())
    }

    fn home(&self) -> PathBuf {
        self.folder().join("gnupg")
    }

    /// How a client is told of it.
    pub(crate) fn key(&self) -> KeyAccess {
        let program = self.program();
        KeyAccess::Table(format!("[openpgp]\nbackend = \"split-gpg\"\ngpg_client = \"{}\"\n", program.display()))
    }

    /// From now on each decryption waits.
    pub(crate) fn close_gate(&mut self) {
        let gate = File::open(self.folder().join("gate")).unwrap();
        self.gate = Some(Flock::lock(gate, FlockArg::LockExclusive).unwrap());
    }

    /// All go on.
    pub(crate) fn open_gate(&mut self) {
        self.gate = None;
    }

    /// From now on each call fails with this exit code.
    pub(crate) fn fail(&self, code: i32) {
        std::fs::write(self.folder().join("fail.new"), code.to_string()).unwrap();
        std::fs::rename(self.folder().join("fail.new"), self.folder().join("fail")).unwrap();
    }

    /// From now on calls succeed.
    pub(crate) fn succeed(&self) {
        std::fs::remove_file(self.folder().join("fail")).unwrap();
    }

    /// The next report.
    pub(crate) async fn next(&mut self) -> String {
        let line = tokio::time::timeout(PATIENCE, self.reports.next_line()).await.unwrap().unwrap().unwrap();
        self.count(&line);
        line
    }

    /// Waits for so many decryptions to begin.
    pub(crate) async fn until_begun(&mut self, mut decryptions: usize) {
        while decryptions > 0 {
            if self.next().await == "begin decrypt" {
                decryptions -= 1;
            }
        }
    }

    /// Takes what has been reported; gives how many decryptions began.
    pub(crate) async fn begun(&mut self) -> usize {
        let mut begun = 0;
        // Marks what was reported before.
        let mut mark = Command::new("/bin/sh");
        mark.args(["-c", "echo mark 1<>\"$0\""]).arg(self.folder().join("reports"));
        assert!(mark.status().unwrap().success());
        loop {
            match self.next().await.as_str() {
                "mark" => return begun,
                "begin decrypt" => begun += 1,
                _other => {}
            }
        }
    }

    /// The most calls at once of those that were reported.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// A call that is killed reports no end: counting begins anew.
    pub(crate) fn count_anew(&mut self) {
        (self.running, self.most) = (0, 0);
    }

    fn count(&mut self, report: &str) {
        match report.split_once(' ') {
            Some(("begin", _)) => self.running += 1,
            Some(("end", _)) => self.running = self.running.saturating_sub(1),
            _mark => {}
        }
        self.most = self.most.max(self.running);
    }

    /// The processes that are left of it after a while, as far as they are not an agent of GnuPG's.
    pub(crate) async fn left(&self) -> Vec<u32> {
        staging::processes::until_none(PATIENCE, || staging::processes::with_directory(self.folder())).await.unwrap()
    }

    /// Ends GnuPG's agent.
    pub(crate) fn end_agent(&self) {
        let ended = Command::new("gpgconf").arg("--homedir").arg(self.home()).args(["--kill", "all"]).status();
        assert!(ended.unwrap().success() || std::thread::panicking());
    }
}

/// Another process writes it: as long as this one has it open for writing, so has each child of another test, and it cannot
/// be started.
fn write_script(path: &Path, script: &str) {
    let written = Command::new("/bin/sh")
        .args(["-c", "printf '%s' \"$1\" >\"$2\" && chmod 700 \"$2\"", "sh"])
        .arg(script)
        .arg(path)
        .status();
    assert!(written.unwrap().success());
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if self.has_home {
            self.end_agent();
        }
    }
}
