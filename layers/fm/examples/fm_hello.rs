//! Two programs without a launcher: start it twice with the same name.
//! ```text
//! cargo run -p hamlyn-fm --example fm_hello -- somewhere &
//! cargo run -p hamlyn-fm --example fm_hello -- somewhere
//! ```

use hamlyn_fm::{Config, Fm, Verdict};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

fn main() -> Result<(), hamlyn_fm::Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "hello".into());
    let fm = Fm::meet(&name, Config::default())?;
    let other = 1 - fm.node();

    let done = Rc::new(Cell::new(false));
    let is_done = done.clone();
    let greet = fm.register(None, move |stream, sender| {
        // The header says how long the text is; then the bytes go where they belong.
        let Some(length) = stream.receive_value::<u32>() else { return Verdict::Abort };
        let mut text = vec![0; length.min(4096) as usize];
        let came = stream.receive(&mut text);
        println!("node {sender} says: {}", String::from_utf8_lossy(&text[..came]));
        is_done.set(true);
        Verdict::Continue
    })?;

    let text = format!("hello from process {}", std::process::id());
    let mut message = fm.begin(other, 4 + text.len() as u64, greet)?;
    message.value(&(text.len() as u32))?;
    message.piece(text.as_bytes())?;
    message.end()?;
    while !done.get() {
        if fm.extract(usize::MAX) == 0 && fm.has_left(other) && !done.get() {
            println!("node {other} has left without a word");
            break;
        }
        fm.wait(Some(Duration::from_secs(1)))?;
    }
    fm.finish()
}
