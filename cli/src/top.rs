//! `hamlyn top`: the present activity of services, or of their links, the busiest first.
//!
//! ```text
//!   looks, one each interval (a thread)  ---->  lines  ---->  the screen, or standard output
//!                                     keys  ---->
//! ```
//! Never: a process is asked again before the interval has passed, for any keys; the terminal stays
//! changed.

use crate::arguments::{PAUSE_MIN, TopArguments};
use crate::figures::{Link, is_stopped};
use crate::look::{self, Before, Look, Told, Watched};
use crate::stat::waits;
use crate::words::duration;
use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::{cursor, event, execute, queue, style, terminal};
use hamlyn::Config;
use hamlyn_tools::output;
use hamlyn_tools::perf::row;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Most characters of a program's or a service's name.
const NAME_MAX: usize = 32;
/// Characters of a line about waits, if the width is unknown.
const WAITS_WIDTH: usize = 80;
/// Between two looks at the keys.
const KEYS_EVERY: Duration = Duration::from_millis(100);

/// `hamlyn top`.
pub fn run(arguments: &TopArguments) -> Result<()> {
    let config = Config::from_env()?;
    let mut watched = Watched::new(&arguments.names);
    if !arguments.once && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return on_screen(config, watched, arguments);
    }
    let mut before = Before::new();
    let mut looks = 0;
    loop {
        let width = output::width();
        let look = look::ask_all(&config, &watched.find(&config), look::SILENCE);
        looks += 1;
        // The first one has nothing to be compared with.
        if looks > 1 || look.told.is_empty() {
            output::line(
                lines(&look, &before, arguments.links, arguments.interval, width).join("\n"),
            )?;
            if arguments.once {
                let failed = look.failed.len();
                ensure!(failed == 0, "{failed} of {} did not answer", failed + look.told.len());
                return Ok(());
            }
        }
        before = look::by_name(look.told);
        std::thread::sleep(arguments.interval);
    }
}

/// A look as lines: a table, and a line about the look.
fn lines(
    look: &Look,
    before: &Before,
    links: bool,
    interval: Duration,
    width: Option<usize>,
) -> Vec<String> {
    let table = if links { of_links(look, before) } else { of_services(look, before) };
    let mut lines = table.lines(width);
    for (name, error) in &look.failed {
        lines.push(format!("{}: {error}", clip(name, NAME_MAX)));
    }
    lines.extend(look.left_out());
    let longest = look.told.iter().map(|told| told.took).max().unwrap_or_default();
    let answered = look.told.len();
    if answered + look.failed.len() == 0 {
        return vec!["No service that this user may ask is here now.".into()];
    }
    lines.push(format!(
        "{} asked, each once in {:.1} s; {answered} answered, the slowest after {:.1} ms",
        match answered + look.failed.len() {
            1 => "1 process".into(),
            count => format!("{count} processes"),
        },
        interval.as_secs_f64(),
        longest.as_secs_f64() * 1e3,
    ));
    lines
}

fn clip(text: &str, max: usize) -> String {
    match text.chars().count() > max {
        true => text.chars().take(max.saturating_sub(2)).chain("..".chars()).collect(),
        false => text.into(),
    }
}

/// A table that adapts to the width. If the width is unknown, it has all columns, and waits stand
/// below their row, where a narrow window still shows them.
struct Fitting {
    /// The headings of its columns, with `|` between.
    header: &'static str,
    rows: Vec<Vec<String>>,
    /// Columns of names, which are clipped.
    names: &'static [usize],
    /// Columns of numbers, which are aligned right.
    numbers: std::ops::Range<usize>,
    /// Columns that are left out if the width is too small, the first one first. Before them the
    /// last column of all, the waits, becomes a line of its own.
    spared: &'static [usize],
}

impl Fitting {
    fn lines(&self, width: Option<usize>) -> Vec<String> {
        let Some(width) = width else { return self.form((true, 0, NAME_MAX), WAITS_WIDTH) };
        // Each form, from the widest on: whether waits have lines of their own, columns that are
        // left out, characters of a name.
        let spared = (0..=self.spared.len()).map(|left_out| (true, left_out, NAME_MAX));
        let clipped = [24, 16, 12].map(|name_max| (true, self.spared.len(), name_max));
        let mut lines = Vec::new();
        for form in [(false, 0, NAME_MAX)].into_iter().chain(spared).chain(clipped) {
            lines = self.form(form, width);
            if lines.iter().all(|line| line.chars().count() <= width) {
                return lines;
            }
        }
        lines.iter().map(|line| clip(line, width)).collect()
    }

    fn form(&self, form: (bool, usize, usize), width: usize) -> Vec<String> {
        let (apart, left_out, name_max) = form;
        let headings: Vec<&str> = self.header.split('|').collect();
        let last = headings.len() - 1;
        let is_shown = |column: &usize| {
            let is_apart = apart && *column == last;
            !is_apart && !self.spared[..left_out].contains(column)
        };
        let columns: Vec<usize> = (0..=last).filter(is_shown).collect();
        let mut table = row::table(columns.iter().map(|column| headings[*column]));
        for cells in &self.rows {
            table.add_row(columns.iter().map(|column| match self.names.contains(column) {
                true => clip(&cells[*column], name_max),
                false => cells[*column].clone(),
            }));
        }
        let right = columns.iter().enumerate().filter(|(_, column)| self.numbers.contains(column));
        row::align_right(&mut table, right.map(|(at, _)| at));
        let mut lines: Vec<String> = table.to_string().lines().map(str::to_owned).collect();
        if apart {
            // Rows stand before the line that ends the table, one a line.
            let end = lines.len().saturating_sub(1);
            let first = end.saturating_sub(self.rows.len());
            for (at, cells) in
                self.rows.iter().enumerate().rev().filter(|row| !row.1[last].is_empty())
            {
                let parts = cells[last].split("; ");
                let below = parts.flat_map(|part| output::wrapped(part, width.saturating_sub(3)));
                let below = below.map(|line| format!("   {line}"));
                drop(lines.splice(first + at + 1..first + at + 1, below));
            }
        }
        lines
    }
}

fn bytes(number: f64) -> String {
    ByteSize::b(number as u64).display().iec().to_string()
}

/// A row, and its sort keys: whether a program waits there, and its load.
type Row = (bool, f64, Vec<String>);

/// Rows with waits first, then the busiest; equal ones by name.
fn sorted(mut rows: Vec<Row>) -> impl Iterator<Item = Vec<String>> {
    rows.sort_by(|a, b| {
        b.0.cmp(&a.0).then_with(|| b.1.total_cmp(&a.1)).then_with(|| a.2.cmp(&b.2))
    });
    rows.into_iter().map(|row| row.2)
}

fn of_services(look: &Look, before: &Before) -> Fitting {
    let header = "service|user|process|program|up|links|sent/s|bytes/s|received/s|\
                  bytes/s|refused/s|queued|waits";
    let rows = look.told.iter().map(|told| {
        let earlier = told.earlier(before);
        let rate = |name| told.rate(earlier, name);
        let (sent, received) = (rate("messages_sent"), rate("messages_received"));
        let refused = told.figures.counters.iter().filter(|row| row.0.starts_with("refused_"));
        let refused: f64 = refused.map(|row| rate(&row.0)).sum();
        let queued: u64 = told
            .figures
            .links
            .values()
            .fold(0, |sum, link| link.number("messages_queued").saturating_add(sum));
        let number = |number: Option<u32>| number.map_or("?".into(), |number| number.to_string());
        let cells = vec![
            told.name.clone(),
            number(told.user),
            number(told.process),
            told.program.clone().unwrap_or_default(),
            duration(told.figures.number("uptime_ms")),
            told.figures.number("links").to_string(),
            format!("{sent:.0}"),
            bytes(rate("bytes_sent")),
            format!("{received:.0}"),
            bytes(rate("bytes_received")),
            format!("{refused:.0}"),
            queued.to_string(),
            of_process(told),
        ];
        (false, sent + received, cells)
    });
    let rows = sorted(rows.collect()).collect();
    Fitting { header, rows, names: &[0, 3], numbers: 4..12, spared: &[11, 7, 9, 5, 1] }
}

/// The program's waits, and the requests that wait for it.
fn of_process(told: &Told) -> String {
    let links = || told.figures.links.values();
    let for_room = links().map(|link| link.number("waits_for_room_ms")).max().unwrap_or(0);
    let for_buffer = links().map(|link| link.number("waits_for_buffer_ms")).max().unwrap_or(0);
    let waits = match (for_room.max(for_buffer), told.figures.number("waiting_ms")) {
        (0, 0) => None,
        (0, ms) => Some(format!("for messages {}", duration(ms))),
        (ms, _) => Some(format!("for room {}", duration(ms))),
    };
    let held = match told.figures.number("requests_held") {
        0 => None,
        1 => Some("1 request is not replied to".into()),
        count => Some(format!("{count} requests are not replied to")),
    };
    // A stopped peer, the cause of the waits, comes first.
    let stopped = match links().filter(|link| link.peer_pid().is_some_and(is_stopped)).count() {
        0 => None,
        1 => Some("1 peer is stopped".into()),
        count => Some(format!("{count} peers are stopped")),
    };
    stopped.into_iter().chain(waits).chain(held).collect::<Vec<_>>().join("; ")
}

fn of_links(look: &Look, before: &Before) -> Fitting {
    let header = "service|link|peer|sent/s|bytes/s|received/s|bytes/s|in flight|queued|waits";
    let mut rows = Vec::new();
    // A process with several names reports all its links under each.
    for told in look.told.iter().filter(|told| told.same_as.is_none()) {
        let earlier = told.earlier(before);
        for (number, link) in &told.figures.links {
            let rate = |name| told.link_rate(earlier, *number, name);
            let (sent, taken) = (rate("messages_sent"), rate("packets_taken"));
            let cells = vec![
                service(told, link),
                number.to_string(),
                peer(link),
                format!("{sent:.0}"),
                bytes(rate("ring_bytes_sent")),
                format!("{taken:.0}"),
                bytes(rate("ring_bytes_taken")),
                bytes(link.number("ring_bytes_waiting") as f64),
                link.number("messages_queued").to_string(),
                waits(&told.figures, link),
            ];
            rows.push((is_held_up(told, earlier, *number, link), sent + taken, cells));
        }
    }
    let rows = sorted(rows).collect();
    Fitting { header, rows, names: &[0, 2], numbers: 3..9, spared: &[4, 6, 8] }
}

/// Whether a program waits on a link. In a busy server every look finds requests that are about to
/// get a reply: these count only if the link had no traffic since the look before.
fn is_held_up(told: &Told, earlier: Option<&Told>, number: u32, link: &Link) -> bool {
    let mut others = Link(link.0.clone(), link.1);
    others.0.remove("requests_held");
    let is_old = || {
        let before = earlier.and_then(|earlier| earlier.figures.links.get(&number));
        before.is_some_and(|before| before.holds_requests_of(link))
    };
    is_old() || !waits(&told.figures, &others).is_empty()
}

/// The name of the process by which the peer made the link; for a link that the process made, the
/// name under which it was asked.
fn service(told: &Told, link: &Link) -> String {
    match (link.text("made_by"), link.text("service")) {
        ("the peer", service) if !service.is_empty() => match told.name.split_once('@') {
            Some((user, _)) => format!("{user}@{service}"),
            None => service.into(),
        },
        _ => told.name.clone(),
    }
}

/// `77 (postgres), user 1000`: the process first, which a narrow column still shows.
fn peer(link: &Link) -> String {
    if !link.text("peer_host").is_empty() {
        return link.peer();
    }
    let (process, user) = (link.text("peer_process"), link.text("peer_user"));
    let program = link.peer_program().map_or(String::new(), |program| format!(" ({program})"));
    format!("{process}{program}, user {user}")
}

/// The terminal as a screen; restored when this is dropped, also by a panic.
struct Screen(());

impl Screen {
    fn new() -> Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Self(());
        let mut out = std::io::stdout();
        execute!(out, terminal::EnterAlternateScreen, terminal::DisableLineWrap, cursor::Hide)?;
        Ok(screen)
    }

    fn show(&self, lines: &[String]) -> Result<()> {
        let (_, height) = terminal::size()?;
        let mut out = std::io::stdout().lock();
        queue!(out, terminal::BeginSynchronizedUpdate)?;
        for row in 0..height {
            let line = lines.get(usize::from(row)).map_or("", |line| line);
            let clear = terminal::Clear(terminal::ClearType::UntilNewLine);
            queue!(out, cursor::MoveTo(0, row), style::Print(line), clear)?;
        }
        queue!(out, terminal::EndSynchronizedUpdate)?;
        Ok(out.flush()?)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let mut out = std::io::stdout();
    let _ = execute!(out, cursor::Show, terminal::EnableLineWrap, terminal::LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

/// A signal that ends this process leaves the terminal as it was.
fn restore_on_signals() -> Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .context("cannot wait for the signals that end this command")?;
    let thread =
        std::thread::Builder::new().name("signals".into()).stack_size(64 << 10).spawn(move || {
            if let Some(signal) = signals.forever().next() {
                restore();
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
    thread
        .map(drop)
        .context("cannot start a thread, which waits for the signals that end this command")
}

/// Looks again and again, until the receiver of the results has gone.
fn look_on(config: &Config, mut watched: Watched, pause: Duration, seen: &SyncSender<Look>) {
    loop {
        let began = Instant::now();
        if seen.send(look::ask_all(config, &watched.find(config), look::SILENCE)).is_err() {
            return;
        }
        // The whole pause follows even a long look.
        std::thread::sleep(pause.saturating_sub(began.elapsed()).max(PAUSE_MIN));
    }
}

fn on_screen(config: Config, watched: Watched, arguments: &TopArguments) -> Result<()> {
    let (send, seen) = sync_channel(1);
    let pause = arguments.interval;
    // A process that does not answer must not delay the keys.
    std::thread::Builder::new()
        .name("looks".into())
        .spawn(move || look_on(&config, watched, pause, &send))?;
    restore_on_signals()?;
    let screen = Screen::new()?;
    screen.show(&["Looking ..".into()])?;
    watch(&screen, &seen, arguments)
}

fn watch(screen: &Screen, seen: &Receiver<Look>, arguments: &TopArguments) -> Result<()> {
    let (mut before, mut latest) = (Before::new(), Look::default());
    let mut links = arguments.links;
    loop {
        let mut is_new = match seen.recv_timeout(KEYS_EVERY) {
            Ok(look) => {
                before = look::by_name(std::mem::replace(&mut latest, look).told);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the looks have ended"),
        };
        while event::poll(Duration::ZERO)? {
            match event::read()? {
                Event::Key(key) if ends(&key) => return Ok(()),
                Event::Key(KeyEvent {
                    code: KeyCode::Char('l'),
                    kind: KeyEventKind::Press,
                    ..
                }) => {
                    links = !links;
                    is_new = true;
                }
                Event::Resize(..) => is_new = true,
                _ => {}
            }
        }
        if is_new {
            let (width, height) = terminal::size()?;
            let (width, height) = (usize::from(width), usize::from(height));
            let mut lines = lines(&latest, &before, links, arguments.interval, Some(width));
            let foot = lines.pop().unwrap_or_default();
            lines.truncate(height.saturating_sub(1));
            lines.resize(height.saturating_sub(1), String::new());
            lines.push(format!("{foot}; q: ends, l: services or links"));
            screen.show(&lines)?;
        }
    }
}

fn ends(key: &KeyEvent) -> bool {
    let is_interrupt =
        key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
    is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figures;
    use std::sync::Arc;

    fn told(name: &str, sent: u64, at: Instant) -> Told {
        let text = format!(
            "node {name}\nmessages_sent {sent}\nlink.1.peer_node z\nlink.1.messages_sent {sent}\n\
             link.1.waits_for_room_ms 2500\n"
        );
        let (took, figures) = (Duration::ZERO, Arc::new(Figures::of(&text)));
        let (host, user, process, program, same_as) = (None, None, None, None, None);
        Told { name: name.into(), at, took, host, user, process, program, figures, same_as }
    }

    fn first_link(told: &mut Told) -> &mut Link {
        Arc::get_mut(&mut told.figures).unwrap().links.get_mut(&1).unwrap()
    }

    #[test]
    fn whatever_a_process_writes_is_a_table_and_metrics_and_is_no_panic() {
        let now = Instant::now();
        let looks = |at| {
            let told = |figures| Told { figures: Arc::new(figures), ..told("x", 0, at) };
            crate::figures::tests::extremes().into_iter().map(told).collect::<Vec<_>>()
        };
        for before in looks(now) {
            let before = look::by_name(vec![before]);
            for told in looks(now + Duration::from_millis(1)) {
                let look = Look { told: vec![told], ..Look::default() };
                for (links, width) in [(false, None), (true, Some(80)), (true, Some(1))] {
                    assert!(lines(&look, &before, links, Duration::MAX, width).len() > 1);
                }
                assert!(!crate::prometheus::text(&look).is_empty());
            }
        }
    }

    #[test]
    fn a_link_on_which_somebody_waits_comes_before_busy_ones() {
        let now = Instant::now();
        let mut busy = told("busy", 950, now);
        let link = first_link(&mut busy);
        link.0.insert("waits_for_room_ms".into(), "0".into());
        let before = look::by_name(vec![told("busy", 50, now), told("stuck", 50, now)]);
        let look = Look { told: vec![busy, told("stuck", 50, now)], ..Look::default() };
        let text = lines(&look, &before, true, Duration::from_secs(1), Some(200)).join("\n");
        assert!(text.find("stuck").unwrap() < text.find("busy").unwrap(), "{text}");
    }

    #[test]
    fn a_link_is_told_once_under_the_service_by_which_it_was_made() {
        let now = Instant::now();
        let text = "node n\nlink.1.peer_node z\nlink.1.made_by the peer\nlink.1.service prices\n\
                    link.2.peer_node y\nlink.2.made_by this process\nlink.2.service elsewhere\n";
        let of = |name: &str| Told { figures: Figures::of(text).into(), ..told(name, 0, now) };
        let rows = |names: [&str; 2]| {
            let same_as = Some(names[0].to_string());
            let told = vec![of(names[0]), Told { same_as, ..of(names[1]) }];
            let look = Look { told, ..Look::default() };
            let rows = of_links(&look, &Before::new()).rows.into_iter();
            rows.map(|row| row[..2].join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(rows(["orders", "prices"]), ["orders 2", "prices 1"]);
        assert_eq!(rows(["7@orders", "7@prices"]), ["7@orders 2", "7@prices 1"]);
        // Of other processes, links have the same numbers.
        let another = Told {
            figures: Figures::of(&text.replace("node n", "node m")).into(),
            ..told("stock", 0, now)
        };
        let look = Look { told: vec![of("orders"), another], ..Look::default() };
        assert_eq!(of_links(&look, &Before::new()).rows.len(), 4);
    }

    #[test]
    fn both_tables_fit_80_columns_and_use_more_where_there_is_more() {
        let then = Instant::now();
        let now = then + Duration::from_secs(1);
        let names = ["orders", "a-service-whose-name-is-very-long-indeed"];
        let at = |at, sent| names.map(|name| told(name, sent, at)).into_iter();
        let before = look::by_name(at(then, 1).collect());
        let mut look = Look { told: at(now, 40_000_000).collect(), ..Look::default() };
        for told in &mut look.told {
            told.user = Some(4_294_967_294);
            told.process = Some(4_194_304);
            told.program = Some("a-long-program".into());
            let link = first_link(told);
            for (name, value) in [
                ("peer_process", "4194304"),
                ("peer_user", "4294967294"),
                ("ring_bytes_sent", "123456789012"),
                ("ring_bytes_waiting", "65536"),
                ("waits_for_buffer_ms", "3100"),
                ("peer_waits_for_room", "1"),
            ] {
                link.0.insert(name.into(), value.into());
            }
        }
        // Of a process the longest.
        let waits = |links| if links { "2.5 s" } else { "3.1 s" };
        for links in [false, true] {
            let of = |width| {
                let table =
                    if links { of_links(&look, &before) } else { of_services(&look, &before) };
                table.lines(Some(width))
            };
            for width in [80, 100, 132] {
                let lines = of(width);
                let widest = lines.iter().map(|line| line.chars().count()).max();
                assert!(widest <= Some(width), "{width}: {}", lines.join("\n"));
                let text = lines.join("\n");
                for part in ["sent/s", "orders", "a-serv", "39999999", "4194304", waits(links)] {
                    assert!(text.contains(part), "{part}: {text}");
                }
            }
            let (narrow, wide) = (of(80).join("\n"), of(300).join("\n"));
            assert!(
                !narrow.contains("queued") && wide.contains("queued") && wide.contains("bytes/s")
            );
            // Waits stand below their own row.
            let lines = of(80);
            let row = lines.iter().position(|line| line.contains("orders")).unwrap();
            let below = &lines[row + 1];
            assert!(below.starts_with("   ") && below.contains(waits(links)), "{narrow}");
            assert!(
                !links || narrow.contains("\n   has waited for a buffer of the peer's for 3.1 s")
            );
        }
    }

    #[test]
    fn what_is_waited_for_is_seen_within_80_columns_whatever_is_known_of_the_width() {
        let now = Instant::now();
        let mut one = told("orders", 40_000_000, now);
        one.user = Some(4_294_967_294);
        one.program = Some("a-long-program".into());
        let link = first_link(&mut one);
        for (name, value) in [
            ("peer_process", "4194304"),
            ("peer_user", "4294967294"),
            ("small_messages_held", "4000000000"),
            ("small_messages_max", "4000000000"),
            ("small_messages_held_ms", "119999"),
            ("small_messages_short", "1"),
        ] {
            link.0.insert(name.into(), value.into());
        }
        let look = Look { told: vec![one], ..Look::default() };
        for width in [None, Some(80), Some(100)] {
            let all = lines(&look, &Before::new(), true, Duration::from_secs(1), width);
            let seen = width.unwrap_or(80);
            let cut: Vec<String> =
                all.iter().map(|line| line.chars().take(seen).collect()).collect();
            let words = cut.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
            let waits = "its program has not received 4000000000 small messages, for 119.9 s at \
                         least, and 4000000000 are the most";
            assert!(words.contains(waits), "{width:?}: {}", all.join("\n"));
            assert!(words.contains("has waited for the peer for 2.5 s"), "{}", all.join("\n"));
            // The row itself is not narrowed for the line below it.
            assert!(words.contains("4194304, user 4294967294"), "{}", all.join("\n"));
        }
    }

    #[test]
    fn the_busiest_comes_first_and_who_waits_is_told() {
        let then = Instant::now();
        let now = then + Duration::from_secs(1);
        let before = look::by_name(vec![told("idle", 50, then), told("busy", 50, then)]);
        let look = Look {
            told: vec![told("idle", 51, now), told("busy", 950, now)],
            failed: vec![("gone".into(), "nobody listens".into())],
            ..Look::default()
        };
        for links in [false, true] {
            let lines = lines(&look, &before, links, Duration::from_secs(1), Some(200));
            let text = lines.join("\n");
            let at = |name: &str| text.find(name).unwrap_or_else(|| panic!("{name}: {text}"));
            assert!(at("busy") < at("idle") && text.contains("900"), "{text}");
            assert!(text.contains("2.5 s") && text.contains("gone: nobody listens"), "{text}");
            assert!(text.contains("3 processes asked") && text.contains("; 2 answered"), "{text}");
        }
    }
}
