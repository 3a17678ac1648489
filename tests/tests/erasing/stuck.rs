//! Files that cannot be removed.

use nix::sys::signal::Signal;
use rusqlite::Connection;

use crate::support::*;

/// Case D4: what cannot be removed is told once and named by `status`, also after a start, until it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn d4_what_cannot_be_removed_is_told_until_it_is_gone() {
    let mut environment = reading_client().await;
    let doomed = read_source(&environment).await;
    let obstacle = files(&environment, "plaintext").remove(0);
    std::fs::remove_file(&obstacle).unwrap();
    std::fs::create_dir(&obstacle).unwrap();
    std::fs::write(obstacle.join("in-the-way"), "").unwrap();
    assert!(std::fs::remove_file(&obstacle).is_err(), "it can be removed");

    let mut watch = environment.watch().await.unwrap();
    act(&environment, &["delete", "source", doomed.as_str(), "--yes"]).await;
    let told = watch.until("erasure_failed").await.unwrap();
    assert_eq!(told["fault"]["items"], 1, "{told}");
    assert_eq!(status(&environment).await["erasure"], told["fault"]);
    let text = environment.run(["status"], "").await.unwrap().stdout;
    assert!(text.contains("1 item that was deleted is still on the disk"), "{text}");
    // All the rest is gone, and what the database said of it too.
    until_gone(&environment, &[SAID, ANSWERED]).await;
    assert_eq!(counts(&environment), [0, 0, 1]);

    // A start tries again, tells again, and starts.
    drop(watch);
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    environment.start_daemon().await.unwrap();
    while status(&environment).await["erasure"]["items"] != 1 {}
    sign_in_again(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    for _ in 0..3 {
        refresh(&environment).await;
    }
    std::fs::remove_dir_all(&obstacle).unwrap();
    let mut syncs = 3;
    while !status(&environment).await["erasure"].is_null() {
        refresh(&environment).await;
        syncs += 1;
    }
    assert!(!environment.run(["status"], "").await.unwrap().stdout.contains("still on the disk"));
    while syncs > 0 {
        let event = watch.next().await.unwrap();
        assert_ne!(event["event"], "erasure_failed", "it was told already");
        syncs -= i32::from(event["event"] == "sync_ended");
    }
    assert_eq!(counts(&environment), [0, 0, 0]);
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    assert_eq!(noted(&environment), 0);
    environment.stop().await.unwrap();
}

/// Case D4: what the database cannot be rid of is told like a file that cannot be removed.
#[tokio::test(flavor = "multi_thread")]
async fn d4_what_the_database_cannot_be_rid_of_is_told_until_it_is_gone() {
    let environment = reading_client().await;
    let doomed = read_source(&environment).await;
    let database = Connection::open(environment.home().join("store.sqlite3")).unwrap();
    let full = "CREATE TRIGGER full BEFORE UPDATE ON local_pages WHEN NOT new.dirty
                BEGIN SELECT RAISE(ABORT, 'no room'); END;";
    database.execute_batch(full).unwrap();
    let mut watch = environment.watch().await.unwrap();
    act(&environment, &["delete", "source", doomed.as_str(), "--yes"]).await;
    let told = watch.until("erasure_failed").await.unwrap();
    assert_eq!(told["fault"]["items"], 0, "{told}");
    assert_eq!(status(&environment).await["erasure"], told["fault"]);
    let text = environment.run(["status"], "").await.unwrap().stdout;
    assert!(text.contains("what was deleted may still be in the database"), "{text}");
    database.execute_batch("DROP TRIGGER full").unwrap();
    while !status(&environment).await["erasure"].is_null() {
        refresh(&environment).await;
    }
    environment.stop().await.unwrap();
}
