//! The tour's output while it plays: the headings, sentences, facts and tables of its report, and
//! at the end its findings.

use crate::report::{Finding, Section, class, pieces};
use anyhow::Result;
use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, TableComponent, Width};
use hamlyn_tools::output::{self, ReaderGone};
use hamlyn_tools::perf::row;
use std::fmt;

/// Characters of a line if neither a terminal nor `COLUMNS` sets them.
const WIDTH: usize = 120;
/// Blanks that a table puts around a cell.
const PADDING: usize = 2;

/// Prints a line. If the reader has left (`hamlyn-tour | grep -q`) the tour goes on, for its
/// report.
pub fn say(text: impl fmt::Display) -> Result<()> {
    match output::line(text) {
        Err(error) if error.is::<ReaderGone>() => Ok(()),
        result => result,
    }
}

pub fn heading(text: &str) -> Result<()> {
    say(format_args!("\n{text}\n{}", "=".repeat(text.chars().count())))
}

/// All of a section except its title, which is printed earlier, and its chart.
pub fn section(section: &Section) -> Result<()> {
    say(of_section(section, output::width().unwrap_or(WIDTH)))
}

/// The conclusions of the tour.
pub fn findings(findings: &[Finding]) -> Result<()> {
    heading("In short")?;
    say(of_findings(findings, output::width().unwrap_or(WIDTH)))
}

fn of_findings(findings: &[Finding], width: usize) -> String {
    let mark = |finding: &Finding| if finding.is_good { "  - " } else { "  ! " };
    let lines = findings.iter().map(|finding| hanging(mark(finding), &finding.text, width));
    lines.collect::<Vec<_>>().join("\n")
}

fn of_section(section: &Section, width: usize) -> String {
    let mut parts: Vec<String> =
        section.text.iter().map(|text| output::wrapped(text, width).join("\n")).collect();
    let longest = section.facts.iter().map(|fact| fact.0.chars().count()).max().unwrap_or(0);
    let facts = section.facts.iter();
    parts.extend(facts.map(|(name, text)| hanging(&format!("  {name:longest$}  "), text, width)));
    if !section.rows.is_empty() {
        parts.push(table(&section.header, &section.rows, width));
    }
    parts.join("\n")
}

/// Lines after the first are indented to the beginning of the text.
fn hanging(before: &str, text: &str, width: usize) -> String {
    let indent = before.chars().count();
    let lines = output::wrapped(text, width.saturating_sub(indent));
    format!("{before}{}", lines.join(&format!("\n{:indent$}", "")))
}

/// Fits a table to this width, with a line between rows if cells are wrapped.
fn table(header: &[String], rows: &[Vec<String>], width: usize) -> String {
    // A longer word is a name, and is broken where a name can be.
    let word_max = (width / header.len().max(1)).saturating_sub(PADDING).max(8);
    let columns = 0..header.len();
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let of_column = |column: usize, longest: fn(&str) -> usize| {
        let cells = cells(column).map(|cell| folded(cell, word_max));
        cells.chain([header[column].clone()]).map(|cell| longest(&cell)).max().unwrap_or(0)
    };
    let natural: Vec<usize> =
        columns.clone().map(|column| of_column(column, longest_line) + PADDING).collect();
    let is_wrapped = natural.iter().sum::<usize>() > width;
    let mut table = row::table([]);
    table.set_header(header);
    table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    if is_wrapped {
        table.set_style(TableComponent::HorizontalLines, '─');
        table.set_style(TableComponent::MiddleIntersections, '─');
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    for row in rows {
        // On a terminal, and not with NO_COLOR.
        table.add_row(row.iter().map(|cell| match class(cell) {
            Some("good") => Cell::new(cell).fg(Color::Green),
            Some("care") => Cell::new(cell).fg(Color::Yellow),
            Some("bad") => Cell::new(cell).fg(Color::Red),
            _ => Cell::new(folded(cell, word_max)),
        }));
    }
    let is_number = |cell: &&String| cell.starts_with(|c: char| c.is_ascii_digit());
    let right = |column: &usize| {
        *column > 0 && cells(*column).filter(|cell| !cell.is_empty()).all(|cell| is_number(&cell))
    };
    row::align_right(&mut table, columns.clone().filter(right));
    // No word is broken in the middle.
    for (column, natural) in columns.zip(natural).filter(|_| is_wrapped) {
        let widest = (of_column(column, longest_word) + PADDING).min(natural) as u16;
        if let Some(column) = table.column_mut(column) {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(widest)));
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

fn longest_line(cell: &str) -> usize {
    cell.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

fn longest_word(cell: &str) -> usize {
    cell.split_whitespace().map(|word| word.chars().count()).max().unwrap_or(0)
}

/// The same text, with words of more than `max` letters split into lines.
fn folded(cell: &str, max: usize) -> String {
    let fold = |word: &str| {
        if word.chars().count() <= max {
            return word.to_owned();
        }
        let (mut lines, mut used) = (String::new(), 0);
        for piece in pieces(word, max) {
            let letters = piece.chars().count();
            if used > 0 && used + letters > max {
                lines.push('\n');
                used = 0;
            }
            lines.push_str(&piece);
            used += letters;
        }
        lines
    };
    cell.split(' ').map(fold).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts() -> Section {
        let row = |cells: [&str; 4]| cells.map(String::from).to_vec();
        let how = "refused, before it has said what it wants: the receiver cannot be reached: \
                   hamlyn://10.77.2.2:41925/deep-thought: the other end does not have the secret";
        Section {
            title: "A stranger".into(),
            text: vec!["a sentence that is longer than a line of eighty characters ".repeat(3)],
            facts: vec![
                ("path".into(), "a ring of 512 lines; ".repeat(12)),
                ("took".into(), "1 s".into()),
            ],
            header: row(["attempt", "what came of it", "counted by", "result"]),
            rows: vec![
                row([
                    "5,000 connections held open",
                    how,
                    "control.refused_connections +12",
                    "REFUSED",
                ]),
                row(["ptrace", "possible", "(none)", "POSSIBLE"]),
            ],
            ..Section::default()
        }
    }

    #[test]
    fn a_section_has_the_width_of_the_terminal_and_no_name_is_cut_in_the_middle() {
        for width in [60, 80, 100, 120, 200] {
            let text = of_section(&attempts(), width);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(width), "{width}: {text}");
            assert!(text.lines().all(|line| line.trim_end() == line), "{width}: {text}");
            for whole in ["connections", "refused_", "+12", "REFUSED", "POSSIBLE", "receiver"] {
                assert!(text.contains(whole), "{width}: {whole}: {text}");
            }
            // Later lines are aligned with the beginning of a fact's text.
            let mut facts = text.lines().skip_while(|line| !line.starts_with("  path  a ring"));
            assert!(facts.nth(1).unwrap().starts_with("        "), "{width}: {text}");
            assert!(!text.contains('\u{1b}'), "a colour, and there is no terminal: {text}");
        }
        assert!(of_section(&attempts(), 200).contains("control.refused_connections +12"));
    }

    #[test]
    fn findings_that_are_no_good_news_have_a_mark_and_all_hang() {
        let finding = |is_good, text: &str| Finding { is_good, text: text.into() };
        let findings = [finding(true, "55 of 55 were refused."), finding(false, "one is possible")];
        let text = of_findings(&findings, 20);
        assert_eq!(text, "  - 55 of 55 were\n    refused.\n  ! one is possible");
    }

    #[test]
    fn numbers_stand_right_and_what_fits_has_no_lines_between() {
        let row = |cells: [&str; 2]| cells.map(String::from).to_vec();
        let rows = [row(["Hamlyn", "85 ns"]), row(["pipe", "15.2 us"])];
        let text = table(&row(["what", "one way"]), &rows, 80);
        assert!(text.contains("   85 ns") && text.lines().count() == 6, "{text}");
    }
}
