//! What is too large, what passes, and what breaks off again and again.

use staging::environment::Environment;
use staging::generator::MARLOW;
use staging::server::{Command, Fault, FaultAct, Matching, RecordId};

use crate::support::*;

/// What `queue` says of an item's download.
async fn queued(environment: &Environment, item: &RecordId) -> Option<serde_json::Value> {
    let queue = environment.json(&["queue"], "").await.unwrap();
    queue["downloads"].as_array().unwrap().iter().find(|entry| entry["item"] == item.as_str()).cloned()
}

/// A message that is larger than the server takes one is not even asked for, says so, and holds up nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_one_is_not_fetched() {
    let environment = environment(0, 0, ASKED).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (source, bomb, _) = newcomer(&environment, 3 << 20, 700);
    let good = message(&environment, &source);
    environment.json(&["refresh"], "").await.unwrap();
    until_download(&mut watch, &good, "stored").await;
    assert_eq!(content(&environment, &source, &bomb).await, "failed");
    let entry = queued(&environment, &bomb).await.unwrap();
    assert_eq!(entry["state"], "failed");
    assert!(entry["reason"].as_str().unwrap().contains("2 MiB"), "{entry}");
    // Whoever asks for it hears the same.
    let asked = environment.run(["download", bomb.as_str(), "--wait"], "").await.unwrap();
    assert!(asked.code != Some(0) && asked.stderr.contains("2 MiB"), "{asked:?}");
    assert_eq!(downloads(&environment, &bomb).len(), 0);
    assert_eq!(held(&environment).1, 0, "nothing of it is there");
    let lane = environment.json(&["queue"], "").await.unwrap()["lanes"]["messages"].clone();
    assert_eq!(lane, serde_json::json!({ "waiting": 0, "running": 0, "failed": 1 }));
    environment.stop().await.unwrap();
}

/// What the server does not give for a while is fetched once it does, and nobody has to ask for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_passing_404_fails_no_message() {
    let environment = environment(0, 0, ASKED).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (_, first, file) = newcomer(&environment, 700, 3_000);
    let path = format!("/api/v1/sources/*/*/{first}/download");
    let missing = fault(&environment, &path, FaultAct::json(404, &serde_json::json!({})));
    environment.json(&["refresh"], "").await.unwrap();
    for _ in 0..2 {
        until_download(&mut watch, &first, "postponed").await;
    }
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["lanes"]["messages"]["failed"], 0, "{status}");
    environment.server().control().apply(Command::RemoveFault { id: missing }).unwrap();
    until_download(&mut watch, &first, "stored").await;
    // A file that somebody asks for fails, and says so: it is asked for again, by its name or with all that has failed.
    let path = format!("/api/v1/sources/*/*/{file}/download");
    let missing = fault(&environment, &path, FaultAct::json(404, &serde_json::json!({})));
    environment.json(&["download", file.as_str()], "").await.unwrap();
    until_download(&mut watch, &file, "failed").await;
    environment.server().control().apply(Command::RemoveFault { id: missing }).unwrap();
    environment.json(&["download", "--all"], "").await.unwrap();
    until_download(&mut watch, &file, "stored").await;
    environment.stop().await.unwrap();
}

/// Case F1, through the real proxy and the real SOCKS server: drops at random offsets.
#[tokio::test(flavor = "multi_thread")]
async fn f1_a_download_that_drops_at_random_is_whole_in_the_end_and_little_comes_twice() {
    const SIZE: u64 = 6_000_000;
    /// What was on its way, and what was gathered and not written, with each drop.
    const OVERLAP: u64 = 1 << 20;
    let environment = environment(0, 0, ASKED).await;
    environment.login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let control = environment.server().control();
    for seed in [1_u64, 22, 333] {
        let (_, _, file) = newcomer(&environment, 700, SIZE);
        environment.json(&["refresh"], "").await.unwrap();
        let path = format!("/api/v1/sources/*/submissions/{file}/download");
        let mut random = seed;
        for _ in 0..5 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Of what is left when it comes to that.
            let bytes = 1 + (random >> 33) % (SIZE / 5);
            let drop = Fault::new(Matching::path(&path), FaultAct::DropAfter { bytes }).times(1);
            control.add_fault(drop).unwrap();
        }
        environment.json(&["download", file.as_str()], "").await.unwrap();
        until_download(&mut watch, &file, "stored").await;
        let requests = downloads(&environment, &file);
        assert_eq!(requests.len(), 6, "seed {seed}");
        assert_eq!(requests[0].range(), None, "seed {seed}");
        // What dropped before anything of it was written begins anew.
        assert!(requests.last().unwrap().range().is_some(), "seed {seed}");
        let bytes: u64 = requests.iter().map(|request| request.body_bytes).sum();
        assert!(bytes <= SIZE + 5 * OVERLAP, "seed {seed}: {bytes}");
        let etag = control.etag(&file).await.unwrap();
        let (whole, parts) = held(&environment);
        assert!(whole.iter().any(|bytes| format!("sha256:{}", hex(bytes)) == etag), "seed {seed}");
        assert_eq!(parts, 0, "seed {seed}");
    }
    environment.stop().await.unwrap();
}

/// The most memory that a process has had, in KiB.
fn peak(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
}

/// Case F7.
#[tokio::test(flavor = "multi_thread")]
async fn f7_memory_stays_small_while_a_large_file_comes() {
    const SIZE: u64 = 100_000_000;
    const MOST_KIB: u64 = 64 * 1024;
    let environment = environment(0, 0, ASKED).await;
    environment.login(&MARLOW).await.unwrap();
    let (_, _, file) = newcomer(&environment, 700, SIZE);
    environment.json(&["refresh"], "").await.unwrap();
    let path = format!("/api/v1/sources/*/submissions/{file}/download");
    // All but the end of it comes, and the processes stay to be looked at.
    fault(&environment, &path, FaultAct::HangAfter { bytes: SIZE - 1_000 });
    environment.json(&["download", file.as_str()], "").await.unwrap();
    until_part(&environment, SIZE - (2 << 20)).await;
    let mut proxies = 0;
    for pid in staging::processes::with_directory(environment.directory()).unwrap() {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_proxy = command.split(|byte| *byte == 0).next().is_some_and(|word| word.ends_with(b"splitdrop-proxy"));
        if is_proxy && let Some(peak) = peak(pid) {
            proxies += 1;
            assert!(peak < MOST_KIB, "a proxy had {peak} KiB");
        }
    }
    assert!(proxies >= 2, "one lists, and one fetches the file: {proxies}");
    let peak = peak(environment.daemon_pid().unwrap()).unwrap();
    assert!(peak < MOST_KIB, "the daemon had {peak} KiB");
    environment.stop().await.unwrap();
}
