//! The commands with their arguments and options.

use crate::Part;
use crate::markdown::{code, item, sentence, split_default};
use clap::{Arg, Command};

pub(crate) fn parts() -> Vec<Part> {
    let mut program = fedanchor_cli::command();
    program.build();
    let exit_status = program.get_after_help().map(ToString::to_string).unwrap_or_default();
    let exit_status = exit_status.trim_start_matches("Exit status: ").split("; ").map(|one| {
        let (status, meaning) = one.split_once(' ').unwrap_or((one, ""));
        item(&format!("{}: {}", code(status), sentence(meaning)), &[])
    });
    let exit_status = exit_status.collect();
    let mut commands = String::new();
    program.get_subcommands_mut().for_each(|command| describe(command, &mut commands));
    let everywhere = rows(program.get_arguments());
    vec![
        ("options of every command", everywhere),
        ("exit status", exit_status),
        ("commands", commands),
    ]
}

/// The command and those below it.
fn describe(command: &mut Command, text: &mut String) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let about = command.get_about().map(|about| sentence(&about.to_string())).unwrap_or_default();
    if command.has_subcommands() {
        return command.get_subcommands_mut().for_each(|command| describe(command, text));
    }
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    *text += &format!("\n### `{name}`\n\n{about}\n\n```text\n{usage}\n```\n");
    let own = command.get_arguments().filter(|argument| {
        !argument.is_global_set() && !["help", "version"].contains(&argument.get_id().as_str())
    });
    let own = rows(own);
    if !own.is_empty() {
        *text += &format!("\n{own}");
    }
}

fn rows<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let mut shown: Vec<_> = arguments.filter(|argument| !argument.is_hide_set()).collect();
    shown.sort_by_key(|argument| !argument.is_positional());
    shown.into_iter().map(row).collect()
}

fn row(argument: &Arg) -> String {
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let (mut meaning, mut default) = split_default(&help);
    meaning = sentence(&meaning);
    if argument.get_action().takes_values() {
        let given = argument.get_default_values().iter();
        let given = given.map(|value| code(value.to_string_lossy())).collect::<Vec<_>>();
        default = default.or((!given.is_empty()).then(|| given.join(", ")));
        let values = argument.get_possible_values();
        let values = values.iter().map(|value| code(value.get_name())).collect::<Vec<_>>();
        // `true` and `false` are in the name of the value.
        if !values.is_empty() && !values.iter().any(|value| value == "`true`") {
            meaning += &format!(" One of {}.", values.join(", "));
        }
    }
    let default = default.map(|default| format!(" (default {default})")).unwrap_or_default();
    item(&format!("{}{default}: {meaning}", name(argument)), &[])
}

/// As a person types it: `-y, --yes`, `--out DIR`, `EXPERIMENT`.
fn name(argument: &Arg) -> String {
    let values = argument.get_value_names().unwrap_or_default();
    let values = values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let names = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    let takes_values = argument.get_action().takes_values();
    code(match (names.is_empty(), takes_values) {
        (true, _) => values,
        (false, true) => format!("{names} {values}"),
        (false, false) => names,
    })
}
