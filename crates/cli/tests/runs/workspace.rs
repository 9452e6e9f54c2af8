//! A folder to run the program in, and the settings that make a run small.

use fedanchor_record::{RoundRecord, Summary, files};
use image::{Rgb, RgbImage};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Two rounds on the embedded sample: 200 clients with about 30 images each, two of them per round.
pub const SMALL: &[&str] = &[
    "rounds=2",
    "data.name=sample",
    "data.anchors=50",
    "server.batch=10",
    "data.clients=200",
    "model.name=small",
    "pretrain.epochs=1",
    "client.per_round=2",
    "client.epochs=1",
    "client.batch=16",
];

/// Two rounds on the pictures of [`draw`]: 36 anchors, 60 images on four clients of unequal size,
/// three of them per round. Some images are kept and some are not.
pub const DRAWN: &[&str] = &[
    "rounds=2",
    "data.name=drawn",
    "data.path=drawn",
    "data.anchors=36",
    "server.batch=10",
    "data.clients=4",
    "partition.kind=dirichlet",
    "partition.alpha=1",
    "model.name=small",
    "pretrain.epochs=1",
    "client.per_round=3",
    "client.epochs=2",
    "client.batch=8",
    "method.threshold=0.8",
    "method.contrastive.batch=18",
];

/// A folder to run in.
pub struct Workspace(tempfile::TempDir);

impl Workspace {
    pub fn new() -> Self {
        // In memory where the system allows it: runs wait for the disk in every round.
        Self(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    /// With the pictures of [`draw`] in `drawn`.
    pub fn with_pictures(side: u32) -> Self {
        let workspace = Self::new();
        draw(&workspace.at("drawn"), side);
        workspace
    }

    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    /// `fedanchor run FILE --out OUT`, ready to start.
    pub fn command_of(&self, file: &str, out: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
        command.current_dir(&self.0).env("OMP_NUM_THREADS", "1").env("FEDANCHOR_CACHE", "");
        command.args(["run", file, "--out", out]);
        command
    }

    /// The preset `paper` with these settings, ready to start.
    pub fn command(&self, out: &str, settings: &[&[&str]]) -> Command {
        std::fs::write(self.at("paper.toml"), "preset = \"paper\"").unwrap();
        let mut command = self.command_of("paper.toml", out);
        for setting in settings.iter().copied().flatten() {
            command.args(["--set", setting]);
        }
        command
    }

    /// A run that must succeed; the answer is what it recorded.
    pub fn run(&self, out: &str, settings: &[&[&str]]) -> Vec<RoundRecord> {
        self.succeed(&mut self.command(out, settings));
        self.records(out)
    }

    pub fn succeed(&self, command: &mut Command) -> Output {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command:?}\n{}", text(&output.stderr));
        output
    }

    pub fn read(&self, out: &str, file: &str) -> String {
        std::fs::read_to_string(self.at(out).join(file)).unwrap()
    }

    pub fn records(&self, out: &str) -> Vec<RoundRecord> {
        lines(&self.read(out, files::ROUNDS))
    }

    pub fn summary(&self, out: &str) -> Summary {
        serde_json::from_str(&self.read(out, files::SUMMARY)).unwrap()
    }

    /// Every file of a run folder with its bytes.
    pub fn content(&self, out: &str) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(self.at(out)).unwrap().map(|entry| entry.unwrap());
        let entries = entries.filter(|entry| entry.path().is_file()); // not the checkpoints
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        entries.map(|e| (name(&e.path()), std::fs::read(e.path()).unwrap())).collect()
    }
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// One record per line.
pub fn lines<T: DeserializeOwned>(text: &str) -> Vec<T> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A table with a row of names above and a column of names before it.
pub fn table(csv: &str) -> (Vec<&str>, Vec<Vec<f64>>) {
    let mut lines = csv.lines().map(|line| line.split(',').skip(1));
    let head = lines.next().unwrap().collect();
    (head, lines.map(|row| row.map(|cell| cell.parse().unwrap()).collect()).collect())
}

/// Image folders of three classes, 32 training and 5 test pictures each: stripes that lie, stand
/// or lean, brighter to one side, from hardly seen under noise to clear.
pub fn draw(folder: &Path, side: u32) {
    for (part, count) in [("train", 32), ("test", 5)] {
        for (class, name) in ["leaning", "lying", "standing"].into_iter().enumerate() {
            let folder = folder.join(part).join(name);
            std::fs::create_dir_all(&folder).unwrap();
            for number in 0..count {
                let picture = RgbImage::from_fn(side, side, |x, y| {
                    let stripe = [x + y, y, x][class] / 3 % 2;
                    let workspace = (number * side + y) * side + x + part.len() as u32;
                    let noise = workspace.wrapping_mul(0x9e37_79b9) >> 25; // 0 to 127
                    let clear = number % 8;
                    let value = (stripe * 16 * clear + noise * (8 - clear) / 8 + x) as u8;
                    Rgb([value, value / 2, 255 - value])
                });
                picture.save(folder.join(format!("{number:02}.png"))).unwrap();
            }
        }
    }
}
