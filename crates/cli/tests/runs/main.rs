//! Runs of the built program from start to finish, on settings so small that each takes about a
//! second: what lands in the run folder, whether it is the same again for the same seed, whether
//! every setting has the effect it must have, and how a run ends early.
//!
//! The program is started as a user starts it; calling the library instead would leave the exit
//! status, signals and the settings' way in untested. No number that training computes is written
//! down here, since other machines round otherwise: runs are compared with one another and with
//! what follows from their own settings. The program gets one thread of libtorch, because these
//! tests run beside one another and threads that wait for one another would take most of the time.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // the setting for tests does not reach the functions they share

mod builds;
mod choices;
mod disks;
mod events;
mod exports;
mod faults;
mod fleets;
mod folder;
mod inputs;
mod interrupts;
mod kills;
mod names;
mod paths;
mod pictures;
mod sweeps;
mod trunks;
mod verifying;
mod watching;
mod wholes;
mod workspace;
