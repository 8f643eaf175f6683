//! Progress bars, only for people: on standard error, only if that is a terminal (otherwise
//! indicatif hides the bar itself), and not with `--quiet`.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::Duration;

static SHOWN: OnceLock<bool> = OnceLock::new();

/// Sets whether bars are shown at all; called once, before the first.
pub fn show(shown: bool) {
    let _ = SHOWN.set(shown);
}

/// Bytes of a transfer; without a total, the count and the rate.
pub fn bytes(total: Option<u64>, what: impl Into<Cow<'static, str>>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (
            ProgressBar::new(total),
            "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        ),
        None => (ProgressBar::no_length(), "{msg} {spinner} {bytes} {bytes_per_sec} {elapsed}"),
    };
    styled(bar, template).with_message(what)
}

/// The count, and the rate per second.
pub fn count(what: impl Into<Cow<'static, str>>) -> ProgressBar {
    let bar = ProgressBar::no_length();
    styled(bar, "{msg} {spinner} {pos} {per_sec} {elapsed}").with_message(what)
}

/// Steps of a long piece of work.
pub fn steps(total: u64, what: impl Into<Cow<'static, str>>) -> ProgressBar {
    styled(ProgressBar::new(total), "[{bar:30}] {pos}/{len} {msg}").with_message(what)
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    if SHOWN.get() == Some(&false) {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if bar.is_hidden() {
        return bar;
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
