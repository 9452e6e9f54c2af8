//! The build of the program that computed a result.

use crate::Timing;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::{LazyLock, OnceLock};

/// An unknown version or commit.
const UNKNOWN: &str = "unknown";

/// A build of the program: its version and commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Build {
    /// Version of the program.
    pub version: String,
    /// Commit that the program was built from; `unknown` if it was not built in a git checkout, or by an earlier version.
    #[serde(default = "unknown")]
    pub commit: String,
    /// Whether its source files differed from that commit.
    #[serde(default)]
    pub changed: bool,
}

fn unknown() -> String {
    UNKNOWN.to_owned()
}

/// The build that wrote a file without one.
impl Default for Build {
    fn default() -> Self {
        Self { version: unknown(), commit: unknown(), changed: false }
    }
}

/// Set by the program. A constant of the libraries was rejected: all of them would be compiled again after every commit.
static CURRENT: OnceLock<Build> = OnceLock::new();
static UNDECLARED: LazyLock<Build> =
    LazyLock::new(|| Build { version: env!("CARGO_PKG_VERSION").to_owned(), ..Build::default() });

impl Build {
    /// Sets the build of this process. A program does so once, before its first run; later calls have no effect.
    pub fn declare(self) {
        let _ = CURRENT.set(self);
    }

    /// The build of this process. Its commit is unknown until [`Build::declare`] is called.
    pub fn current() -> &'static Self {
        CURRENT.get().unwrap_or(&UNDECLARED)
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        const SHORT: usize = 12;
        let Self { version, commit, changed } = self;
        let changed = if *changed { ", changed" } else { "" };
        match commit.as_str() {
            UNKNOWN => write!(f, "{version} (commit unknown)"),
            commit => write!(f, "{version} ({commit:.SHORT$}{changed})"),
        }
    }
}

/// Rounds that one build computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BuildRounds {
    /// The build.
    #[serde(flatten)]
    pub build: Build,
    /// The first of its rounds; 0 is pre-training.
    pub from_round: u32,
    /// The last of them.
    pub to_round: u32,
}

impl BuildRounds {
    /// Which build computed which of the rounds up to `last`. The build of a round without a timing is unknown.
    pub fn of(timings: &[Timing], last: u32) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        let mut timings = timings.iter().peekable();
        for round in 0..=last {
            while timings.next_if(|timing| timing.round < round).is_some() {}
            let timing = timings.next_if(|timing| timing.round == round);
            let build = timing.map(|timing| timing.build.clone()).unwrap_or_default();
            match all.last_mut() {
                Some(before) if before.build == build => before.to_round = round,
                _ => all.push(Self { build, from_round: round, to_round: round }),
            }
        }
        all
    }
}

impl fmt::Display for BuildRounds {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { build, from_round, to_round } = self;
        match from_round == to_round {
            true => write!(f, "round {from_round}: {build}"),
            false => write!(f, "rounds {from_round} to {to_round}: {build}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(commit: &str, changed: bool) -> Build {
        Build { version: "1.2.0".to_owned(), commit: commit.to_owned(), changed }
    }

    #[test]
    fn a_build_is_named_by_its_version_and_commit() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(build(commit, false).to_string(), "1.2.0 (0123456789ab)");
        assert_eq!(build(commit, true).to_string(), "1.2.0 (0123456789ab, changed)");
        assert_eq!(build("unknown", false).to_string(), "1.2.0 (commit unknown)");
        assert_eq!(Build::default().to_string(), "unknown (commit unknown)");
    }

    #[test]
    fn files_of_earlier_versions_name_no_commit() {
        let read: Build = serde_json::from_str(r#"{"version":"0.1.0"}"#).unwrap();
        assert_eq!(read.to_string(), "0.1.0 (commit unknown)");
        let timing: Timing = serde_json::from_str(
            r#"{"round":3,"broadcast":0,"clients":0,"aggregate":0,"server":0,"test":0,"total":1,
                "peak_memory":null,"peak_gpu_memory":null}"#,
        )
        .unwrap();
        assert_eq!(timing.build, Build::default());
    }

    #[test]
    fn rounds_are_grouped_by_build() {
        let timing =
            |round, build: &Build| Timing { round, build: build.clone(), ..Timing::default() };
        let (one, two) = (build("a", false), build("a", true));
        let timings = [
            timing(0, &one),
            timing(1, &one),
            timing(3, &one), // the line of round 2 is lost
            timing(4, &two),
            timing(5, &one),
        ];
        let rounds: Vec<String> =
            BuildRounds::of(&timings, 5).iter().map(ToString::to_string).collect();
        assert_eq!(
            rounds,
            [
                "rounds 0 to 1: 1.2.0 (a)",
                "round 2: unknown (commit unknown)",
                "round 3: 1.2.0 (a)",
                "round 4: 1.2.0 (a, changed)",
                "round 5: 1.2.0 (a)",
            ]
        );
        assert_eq!(BuildRounds::of(&[], 2).len(), 1);
    }
}
