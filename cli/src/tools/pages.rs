//! `completions`, `man` and `tunables`: shell completions, man pages and a page of documentation, all from the definitions of the commands.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::tune;
use crate::Cli;
use crate::output::print;

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid completions bash > /etc/bash_completion.d/etherraid
  etherraid completions zsh > /usr/local/share/zsh/site-functions/_etherraid
  etherraid completions fish > ~/.config/fish/completions/etherraid.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write man pages into a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Where to; it is made if need be
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Print docs/TUNABLES.md
#[derive(Debug, clap::Args)]
pub(crate) struct TunablesArgs {}

/// Carries `completions` out.
pub(crate) fn completions(args: CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "etherraid", &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Carries `man` out.
pub(crate) fn man(args: ManArgs) -> anyhow::Result<ExitCode> {
    let at = || format!("writing man pages to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(at)?;
    for (name, text) in pages(Cli::command())? {
        std::fs::write(args.dir.join(name), text).with_context(at)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All pages by file name: that of the program, and one for each command.
fn pages(command: Command) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = vec![page(&command)?];
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        pages.push(page(command)?);
    }
    Ok(pages)
}

fn page(command: &Command) -> anyhow::Result<(String, Vec<u8>)> {
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    let more = command.get_after_long_help().or_else(|| command.get_after_help());
    if let Some(more) = more {
        text.extend_from_slice(as_printed(&more.to_string()).as_bytes());
    }
    Ok((page.get_filename(), text))
}

/// Text whose lines are kept as they are; a line such as `Examples:` opens a section.
fn as_printed(text: &str) -> String {
    let mut page = String::new();
    let mut open = false;
    for line in text.lines() {
        let title = line.strip_suffix(':').filter(|title| title.chars().all(char::is_alphabetic) && !title.is_empty());
        match title {
            Some(title) => {
                page.push_str(if open { ".fi\n" } else { "" });
                page.push_str(&format!(".SH {}\n.nf\n", title.to_uppercase()));
                open = true;
            }
            None => page.push_str(&(roff_line(line) + "\n")),
        }
    }
    page.push_str(if open { ".fi\n" } else { "" });
    page
}

/// A line without what roff would take for a request or an escape.
fn roff_line(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

/// Carries `tunables` out.
pub(crate) fn tunables() -> anyhow::Result<ExitCode> {
    print(&tune::markdown())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lines_are_kept_and_escaped() {
        let text = as_printed("Examples:\n  run 'x' -n 3\n.b \\\n\nTunables:\n  a");
        assert_eq!(
            text,
            ".SH EXAMPLES\n.nf\n  run \\(aqx\\(aq \\-n 3\n\\&.b \\e\n\n.fi\n.SH TUNABLES\n.nf\n  a\n.fi\n"
        );
        assert_eq!(as_printed("plain"), "plain\n");
    }

    #[test]
    fn each_command_has_a_page() {
        let pages = pages(Cli::command()).expect("rendered");
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[0], "etherraid.1");
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(names.contains(&format!("etherraid-{}.1", command.get_name()).as_str()), "{names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("tunables")), "{names:?}");
        let tune = pages.iter().find(|(name, _)| name == "etherraid-tune.1").expect("a page");
        let text = String::from_utf8_lossy(&tune.1);
        assert!(text.contains(".SH TUNABLES") && text.contains("aoe_maxout"), "{text}");
    }
}
