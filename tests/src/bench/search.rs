//! Search in a large store, without the programs around it: what the daemon does between a front end's question and its
//! answer.

use std::io::{self, Write as _};
use std::time::Duration;

use client_vm::store::search::{Query, find};
use client_vm::store::{Store, StoreError};
use control::SearchWords;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{BenchError, micros, print_table};
use crate::generator::Prng;

const SOURCES: u32 = 500;
/// How long a message is, in characters, and a few more.
const MESSAGE_CHARS: usize = 600;
/// How many hits are asked for, as `splitdrop search` does by default.
const LIMIT: usize = 50;
/// How often each query is made.
const RUNS: usize = 20;
/// How many different words each script has.
const WORDS: u64 = 20_000;
/// A word that nearly every message has, and one that three have.
const COMMON: &str = "everywhere";
const RARE: &str = "quizzicalward";

/// Scripts that messages are written in, as the first letters from which words are made, how many there are, and what
/// stands between words.
const SCRIPTS: [(u32, u64, &str); 8] = [
    (0x61, 26, " "),
    (0x61, 26, " "),
    (0x430, 32, " "),
    (0x5d0, 27, " "),
    (0x628, 10, " "),
    (0x915, 37, " "),
    (0x4e00, 3_000, ""),
    (0xac00, 2_000, " "),
];

/// What is searched for, and what that is.
const QUERIES: [(&str, &str); 9] = [
    ("a rare word", RARE),
    ("a word of nearly all", COMMON),
    ("two of nearly all", "everywhere always"),
    ("a beginning", "quizz*"),
    ("a short beginning", "a*"),
    ("a phrase", "\"always quizzicalward\""),
    ("two Chinese characters", "\u{4e0a}\u{4e5d}"),
    ("a designation", "\"calm sea 77\""),
    ("nothing", "nowhereatall"),
];

/// How long a query took, and what it found.
struct Row {
    what: &'static str,
    hits: usize,
    times: Vec<Duration>,
}

impl Row {
    fn median(&self) -> Duration {
        self.times.get(self.times.len() / 2).copied().unwrap_or_default()
    }

    fn worst(&self) -> Duration {
        self.times.last().copied().unwrap_or_default()
    }
}

/// Runs the benchmark with so many messages. Progress goes to standard error, the table or one JSON object to standard
/// output.
///
/// # Errors
/// [`BenchError`].
pub async fn run(messages: u32, json: bool) -> Result<(), BenchError> {
    let directory = tempfile::tempdir()?;
    let store = Store::open(directory.path())?;
    writeln!(io::stderr(), "{messages} messages of {SOURCES} sources ...")?;
    let started = Instant::now();
    fill(&store, messages).await?;
    store.checkpoint().await?;
    let filled = started.elapsed();
    let bytes = std::fs::metadata(directory.path().join("store.sqlite3"))?.len();
    let mut rows = Vec::new();
    for (what, typed) in QUERIES {
        rows.push(measure(&store, what, typed).await?);
    }
    let deleted = delete(&store).await?;
    if json {
        let rows: Vec<Value> = rows.iter().map(|row| {
            json!({ "query": row.what, "hits": row.hits, "median_us": micros(row.median()), "worst_us": micros(row.worst()) })
        }).collect();
        let report = json!({
            "format": 1,
            "messages": messages,
            "sources": SOURCES,
            "database_bytes": bytes,
            "fill_us": micros(filled),
            "delete_us": micros(deleted),
            "queries": rows,
        });
        return Ok(writeln!(io::stdout(), "{report}")?);
    }
    let mut table = vec![["query", "hits given", "median", "worst"].map(str::to_owned).to_vec()];
    for row in &rows {
        table.push(vec![row.what.to_owned(), row.hits.to_string(), ms(row.median()), ms(row.worst())]);
    }
    print_table(&table)?;
    Ok(writeln!(
        io::stdout(),
        "\nA database of {} MB; {:.0} s to fill it, {} to delete a source's messages from it",
        bytes / 1_000_000,
        filled.as_secs_f64(),
        ms(deleted),
    )?)
}

/// Makes a query over and over, as the daemon makes it.
async fn measure(store: &Store, what: &'static str, typed: &str) -> Result<Row, BenchError> {
    let words = SearchWords::try_new(typed)?;
    let (mut times, mut hits) = (Vec::new(), 0);
    for _ in 0..RUNS {
        let started = Instant::now();
        let query = Query::parse(&words)?;
        let found = store.read(move |transaction| find(transaction, &query, LIMIT)).await?;
        times.push(started.elapsed());
        hits = found.hits.len();
    }
    times.sort();
    Ok(Row { what, hits, times })
}

/// How long it takes to delete what a source has said, its traces in the index included.
async fn delete(store: &Store) -> Result<Duration, BenchError> {
    let started = Instant::now();
    store
        .write(|transaction| {
            transaction.execute(
                "DELETE FROM local_item WHERE item_id IN (SELECT id FROM server_submission WHERE source_id = ?1)",
                [id(0, 7)],
            )?;
            Ok(())
        })
        .await?;
    Ok(started.elapsed())
}

/// Messages of all sources in turn, decrypted, a hundred in a transaction.
async fn fill(store: &Store, messages: u32) -> Result<(), BenchError> {
    let mut chance = Prng::new(4_711);
    store
        .write(|transaction| {
            for source in 0..SOURCES {
                transaction.execute(
                    "INSERT INTO server_source (id, digest, designation, starred, last_updated_us, interactions)
                     VALUES (?1, zeroblob(32), ?2, 0, ?3, 1)",
                    (id(0, source), format!("calm sea {source}"), u64::from(source * 7_919 % 104_729)),
                )?;
            }
            Ok(())
        })
        .await?;
    let numbers: Vec<u32> = (0..messages).collect();
    for some in numbers.chunks(100) {
        let texts: Vec<_> = some.iter().map(|number| (*number, text(*number, &mut chance))).collect();
        store.write(move |transaction| texts.iter().try_for_each(|(number, text)| {
            let (item, source) = (id(1, *number), id(0, number % SOURCES));
            transaction.prepare_cached(
                "INSERT INTO server_submission (id, digest, source_id, kind, item_order, size_bytes)
                 VALUES (?1, zeroblob(32), ?2, 'message', ?3, 700)",
            )?.execute((&item, source, number / SOURCES + 1))?;
            transaction.prepare_cached(
                "INSERT INTO local_item (item_id, is_reply, state, plain_bytes, text) VALUES (?1, 0, 'decrypted', ?2, ?3)",
            )?.execute((item, text.len(), text))?;
            Ok::<_, StoreError>(())
        })).await?;
    }
    Ok(())
}

fn id(kind: u32, number: u32) -> String {
    format!("{:08x}-000{kind}-4000-8000-{number:012}", number.wrapping_mul(2_654_435_761))
}

/// What a message says.
fn text(number: u32, chance: &mut Prng) -> String {
    let (mut text, mut length) = (String::new(), 0);
    if !number.is_multiple_of(20) {
        text.push_str(COMMON);
        text.push_str(", always ");
    }
    if number % 7_000 == 3_501 {
        text.push_str(RARE);
        text.push(' ');
    }
    let first = usize::try_from(number).unwrap_or_default() % SCRIPTS.len();
    let scripts: Vec<_> = SCRIPTS.iter().cycle().skip(first).take(2).collect();
    while length < MESSAGE_CHARS {
        for (first, letters, between) in &scripts {
            for _ in 0..8 {
                length += push_word(&mut text, (*first, *letters), chance);
                text.push_str(between);
                length += between.len();
            }
            text.push_str(". ");
        }
    }
    text
}

/// A word of a script, small numbers more often than large ones, as in languages; gives how many characters it has.
fn push_word(text: &mut String, (first, letters): (u32, u64), chance: &mut Prng) -> usize {
    let rank = chance.below(WORDS).min(chance.below(WORDS)).min(chance.below(WORDS));
    let (mut left, mut count) = (rank.wrapping_mul(2_654_435_761) % 100_000_007, 0);
    while left > 0 {
        let letter = u32::try_from(left % letters).unwrap_or_default();
        text.extend(char::from_u32(first + letter));
        left /= letters;
        count += 1;
    }
    count
}

fn ms(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1_000.0)
}
