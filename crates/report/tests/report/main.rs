//! From run folders to tables: finding runs, averaging them, rendering.

#![allow(clippy::unwrap_used)]

mod finding;
mod folders;
mod following;
mod formats;
mod matching;
mod records;
mod rows;
