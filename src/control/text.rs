//! Makes a stranger's text fit for a terminal or a sentence.

use alloc::string::String;
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// Most marks (accents, vowel signs) that are kept behind one character: no language needs more,
/// and a pile of them covers the lines above.
const MARKS_MAX: u32 = 4;

/// `text` without characters that a terminal obeys, or that hide or turn the text: control and
/// format characters (including those of direction), line ends, unassigned and invisible
/// characters, and marks without a base character become `\n`, `\u{202e}` and the like. Letters of
/// any language, signs and quotation marks stay. A second pass changes nothing.
///
/// ```
/// use hamlyn::services::printable;
///
/// let name = "caf\u{e9}\u{202e}\x1b[2J";
/// assert_eq!(printable(name), "caf\u{e9}\\u{202e}\\u{1b}[2J");
/// assert_eq!(printable(&printable(name)), printable(name));
/// ```
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut marks = MARKS_MAX;
    for c in text.chars() {
        let is_kept = match kind(c) {
            CharacterKind::Printable => {
                marks = 0;
                true
            }
            CharacterKind::Mark => {
                marks += 1;
                marks <= MARKS_MAX
            }
            CharacterKind::Other => false,
        };
        if is_kept {
            out.push(c);
        } else {
            // A line or sentence that begins anew has no base character for a mark.
            marks = MARKS_MAX;
            match c {
                '\t' | '\n' | '\r' => out.extend(c.escape_default()),
                _ => out.extend(c.escape_unicode()),
            }
        }
    }
    out
}

/// [`printable`] of bytes that need not be text.
///
/// ```
/// use hamlyn::services::printable_bytes;
///
/// assert_eq!(printable_bytes(b"two\nlines"), "two\\nlines");
/// ```
pub fn printable_bytes(bytes: &[u8]) -> String {
    printable(&String::from_utf8_lossy(bytes))
}

/// Most characters of the name and of the value in a line of statistics. A value may be a sentence.
#[cfg(feature = "os")]
const NAME_CHARS_MAX: usize = 128;
#[cfg(feature = "os")]
const VALUE_CHARS_MAX: usize = 512;

/// A line of statistics as a stranger wrote it: a name, a space and a value, of bounded length and
/// with only readable characters. `None`: it has no value.
#[cfg(feature = "os")]
pub(super) fn printable_line(line: &[u8]) -> Option<String> {
    let space = line.iter().position(|byte| *byte == b' ')?;
    let cut = |bytes: &[u8], chars_max: usize| {
        // No character has more than four bytes, and none becomes fewer than one.
        let mut text = printable_bytes(&bytes[..bytes.len().min(4 * chars_max)]);
        if let Some((end, _)) = text.char_indices().nth(chars_max) {
            text.truncate(end);
        }
        text
    };
    let (name, value) =
        (cut(&line[..space], NAME_CHARS_MAX), cut(&line[space + 1..], VALUE_CHARS_MAX));
    Some(alloc::format!("{name} {value}"))
}

/// Statistics as a stranger wrote them: [`printable_line`] of each line that has a name and a
/// value.
#[cfg(feature = "tls")]
pub(super) fn printable_lines(text: &[u8]) -> String {
    let mut lines = String::new();
    for line in text.split(|byte| *byte == b'\n').filter_map(printable_line) {
        lines.push_str(&line);
        lines.push('\n');
    }
    lines
}

enum CharacterKind {
    Printable,
    /// It stands on the character before it.
    Mark,
    Other,
}

fn kind(c: char) -> CharacterKind {
    if c == ' ' || c.is_ascii_graphic() {
        return CharacterKind::Printable;
    }
    if c.is_ascii() || is_blank(c) {
        return CharacterKind::Other;
    }
    match c.general_category_group() {
        GeneralCategoryGroup::Letter
        | GeneralCategoryGroup::Number
        | GeneralCategoryGroup::Punctuation
        | GeneralCategoryGroup::Symbol => CharacterKind::Printable,
        GeneralCategoryGroup::Mark => CharacterKind::Mark,
        // Spaces other than the usual one, line ends, controls, formats, unassigned characters.
        GeneralCategoryGroup::Separator | GeneralCategoryGroup::Other => CharacterKind::Other,
    }
}

/// Counted among letters, signs and marks, and shown as nothing at all.
fn is_blank(c: char) -> bool {
    matches!(c,
        // Fillers of Hangul, vowels of Khmer without a form, the joiner of graphemes.
        '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' | '\u{17b4}' | '\u{17b5}' | '\u{34f}'
        // Selectors of variants, of Mongolian and of all.
        | '\u{180b}'..='\u{180f}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}'
        // Braille without a dot, the invisible musical note.
        | '\u{2800}' | '\u{1d159}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_can_be_read_stays() {
        for text in [
            "it's \"no\": 100 % \\ {x}",
            "Grüße, ça va?",
            "中文 日本語 한국어",
            "हिन्दी",
            "e\u{301}",
            "€ → ✓",
        ] {
            assert_eq!(printable(text), text);
        }
    }

    #[test]
    fn what_a_terminal_obeys_or_hides_is_spelt_out() {
        for (text, spelt) in [
            ("\x1b[2J", r"\u{1b}[2J"),
            ("\x1b]0;title\x07", r"\u{1b}]0;title\u{7}"),
            ("a\r\nb\tc", r"a\r\nb\tc"),
            ("\u{9b}31m\u{7f}", r"\u{9b}31m\u{7f}"),
            ("\u{202e}abc\u{2066}", r"\u{202e}abc\u{2066}"),
            ("a\u{200b}b\u{feff}\u{ad}", r"a\u{200b}b\u{feff}\u{ad}"),
            ("\u{2028}\u{2029}\u{a0}\u{3000}", r"\u{2028}\u{2029}\u{a0}\u{3000}"),
            ("\u{e0041}\u{e000}\u{3164}\u{2800}", r"\u{e0041}\u{e000}\u{3164}\u{2800}"),
            ("\u{301}a\u{fe0f}\u{301}", r"\u{301}a\u{fe0f}\u{301}"),
        ] {
            assert_eq!(printable(text), spelt);
        }
        assert_eq!(printable(&"a\u{301}".replace('\u{301}', &"\u{301}".repeat(6))), {
            "a\u{301}\u{301}\u{301}\u{301}\\u{301}\\u{301}"
        });
        assert_eq!(printable_bytes(b"a\xffb\0"), "a\u{fffd}b\\u{0}");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_name_and_a_value_of_statistics_have_a_bound_whatever_a_stranger_wrote() {
        for letter in ["x", "\u{1b}", "\u{e9}", "\u{1f600}"] {
            let long = letter.repeat(100_000);
            let line = printable_line(std::format!("{long} {long}").as_bytes()).unwrap();
            let (name, value) = line.split_once(' ').unwrap();
            assert_eq!(name.chars().count(), NAME_CHARS_MAX, "{letter:?}");
            assert_eq!(value.chars().count(), VALUE_CHARS_MAX, "{letter:?}");
        }
        assert_eq!(printable_lines(b"a 1\nnothing\n\n b\na\x07 c d\n"), "a 1\n b\na\\u{7} c d\n");
    }

    proptest! {
        #[test]
        fn nothing_else_comes_out_and_twice_is_once(text in any::<String>()) {
            let once = printable(&text);
            prop_assert!(once.chars().all(|c| !c.is_control() && !matches!(kind(c), CharacterKind::Other)));
            prop_assert_eq!(printable(&once), once);
        }
    }
}
