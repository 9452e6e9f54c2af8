//! `fedanchor completions` and `fedanchor man`, generated from the definitions of the arguments.

use crate::cli::{CompletionsArgs, ManArgs, command};
use crate::printer::Printer;
use anyhow::{Context, Result};

pub fn completions(args: &CompletionsArgs, printer: &Printer) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "fedanchor", &mut text);
    printer.text(&String::from_utf8(text).context("the completions are not UTF-8")?);
    Ok(())
}

pub fn man(args: &ManArgs, printer: &Printer) -> Result<()> {
    fs_err::create_dir_all(&args.out)?;
    let written = clap_mangen::generate_to(command(), &args.out);
    written.with_context(|| args.out.display().to_string())?;
    let out = args.out.display();
    printer.status(format!("wrote the pages to {out}; read one with `man {out}/fedanchor.1`"));
    Ok(())
}
