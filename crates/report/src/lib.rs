//! Reports on run folders: figures, tables with one row per experiment and the number that the paper reports for it, and
//! comparisons.
//!
//! Everything is read from the folders each time. An index of runs was rejected: it would have to
//! follow folders that people move, rename and delete, and reading a thousand of them takes
//! seconds. This crate depends on no tensor library and prints nothing; text is returned.
//!
//! ```no_run
//! use fedanchor_report::{Table, find_runs, render};
//!
//! let runs = find_runs(&["runs".into()], &|_| None)?;
//! let table = Table::new(&runs);
//! let text = render::text(&table);
//! # Ok::<(), fedanchor_report::ReportError>(())
//! ```

mod card;
pub mod chart;
mod compare;
mod elsewhere;
mod error;
mod escape;
mod figures;
mod follow;
mod heading;
mod history;
mod label_studio;
mod page;
mod published;
pub mod render;
mod review;
mod run_files;
mod runs;
mod serve;
mod setup;
mod study;
mod table;
mod tables;
mod tensorboard;

pub use card::model_card;
pub use compare::{Comparison, Evidence, Reached, compare, comparison_text};
pub use error::{ReportError, Result};
pub use figures::{Figure, Frame, Options};
pub use follow::{Follower, Followers, LiveRun, Status};
pub use heading::{Heading, Partition};
pub use history::{Histories, read_histories};
pub use label_studio::{label_studio_interface, label_studio_tasks};
pub use page::{PageData, page, write_report};
pub use review::{Proposal, Shown, review_csv, review_page};
pub use run_files::Matrix;
pub use runs::{LeftOut, Run, Runs, find_folders, find_runs};
pub use serve::{Server, Site};
pub use study::Study;
pub use table::{Average, Table};
pub use tensorboard::EventFile;
