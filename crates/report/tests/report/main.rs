//! From run folders to tables: what is found, what is averaged, how it is written.

#![allow(clippy::unwrap_used)]

mod finding;
mod folders;
mod formats;
mod matching;
mod rows;
