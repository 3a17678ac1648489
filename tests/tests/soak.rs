//! A short soak: the examples in the help of `splitdrop-staging soak`, where they are short.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::process::Stdio;

use serde_json::Value;
use staging::isolation::OPT_OUT;
use tokio::process::Command;

/// Examples with more kills than this are for people.
const FEW: u64 = 20;

/// What it printed, and what it said besides.
async fn staging(arguments: &[&str]) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_splitdrop-staging"))
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let (printed, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{printed}\n{said}");
    (printed, said)
}

fn number_after(example: &[&str], option: &str) -> u64 {
    let at = example.iter().position(|word| *word == option).unwrap();
    example[at + 1].parse().unwrap()
}

/// What must always hold: nothing that was done is lost, and nothing is done twice.
#[tokio::test(flavor = "multi_thread")]
async fn kills_lose_no_act_and_double_none() {
    let (help, _) = staging(&["soak", "--help"]).await;
    let examples: Vec<Vec<&str>> = help
        .lines()
        .filter_map(|line| line.trim().strip_prefix("splitdrop-staging "))
        .map(|line| line.split_whitespace().collect())
        .filter(|example: &Vec<&str>| number_after(example, "--kills") <= FEW)
        .collect();
    assert_eq!(examples.len(), 1, "{help}");
    for example in examples {
        let (printed, said) = staging(&example).await;
        let told: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!((&told["format"], &told["result"]), (&1.into(), &"ok".into()));
        // Without walls it says so, and is not without them unless that was wanted.
        let walls = std::env::var_os(OPT_OUT).is_none_or(|value| value != "1");
        assert_eq!(told["isolated"], walls, "{told}");
        assert_eq!(said.contains("NOT ISOLATED: "), !walls, "{said}");
        for name in ["kills", "seed"] {
            assert_eq!(told[name], number_after(&example, &format!("--{name}")), "{told}");
        }
        assert!(told["acts"].as_u64().unwrap() >= number_after(&example, "--acts"), "{told}");
        assert_eq!(told["most"], 1, "{told}");
    }
}
