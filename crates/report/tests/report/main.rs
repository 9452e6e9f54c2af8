//! From run folders to tables: finding runs, averaging them, rendering.

#![allow(clippy::unwrap_used)]

mod compare;
mod finding;
mod folders;
mod following;
mod formats;
mod matching;
mod pages;
mod records;
mod rows;
