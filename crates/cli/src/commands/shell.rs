//! `fedanchor completions` and `fedanchor man`, generated from the definitions of the arguments.

use crate::cli::command;
use crate::printer::Printer;
use anyhow::{Context, Result};
use clap_complete::Shell;
use std::path::Path;

pub fn completions(shell: Shell, printer: &Printer) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "fedanchor", &mut text);
    printer.text(&String::from_utf8(text).context("the completions are not UTF-8")?);
    Ok(())
}

pub fn man(out: &Path, printer: &Printer) -> Result<()> {
    fs_err::create_dir_all(out)?;
    let out_name = out.display();
    clap_mangen::generate_to(command(), out).with_context(|| out_name.to_string())?;
    printer.status(format!(
        "wrote the pages to {out_name}; read one with `man {out_name}/fedanchor.1`"
    ));
    Ok(())
}
