//! Request and reply: a named service on two threads, a client with many outstanding calls, and the
//! fate of the calls when the server ends.

mod common;

use common::Result;
use hamlyn::Access;
use hamlyn::protocol::{CallError, Client, Manager, Server, ServerConfig};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const CALLS: u32 = 100;

fn server(ready: &dyn Fn() -> Result) -> Result {
    let manager = Manager::new()?;
    let server = Server::new(&manager, ServerConfig::default())?;
    server.set_admission(|peer| match peer.uid {
        Some(_) => Ok(()),
        None => Err("users of other namespaces are not served".into()),
    });
    server.serve("squares", Access::SameUser)?;
    ready()?;
    let serve = || -> std::result::Result<u32, Box<dyn std::error::Error + Send + Sync>> {
        let mut served = 0;
        loop {
            let request = server.receive(LIMIT)?;
            // The last call is kept, and the server goes.
            let Ok(number) = <[u8; 4]>::try_from(&*request) else { return Ok(served) };
            let number = u32::from_le_bytes(number) as u64;
            request.reply(&(number * number).to_le_bytes(), LIMIT)?;
            served += 1;
        }
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(serve), scope.spawn(serve)];
        for thread in threads {
            let served = thread.join().expect("no panic").map_err(|e| e.to_string())?;
            println!("a thread of the server replied to {served} calls");
        }
        Ok(())
    })
}

fn client() -> Result {
    let manager = Manager::new()?;
    let client = Client::connect(&manager, "squares", LIMIT)?;
    let mut sum = 0;
    let mut outstanding = std::collections::VecDeque::new();
    for i in 0..CALLS {
        if outstanding.len() == client.outstanding_max() / 2 {
            let reply = client.finish(outstanding.pop_front().ok_or("none")?, LIMIT)?;
            sum += u64::from_le_bytes((*reply).try_into()?);
        }
        outstanding.push_back(client.start(&i.to_le_bytes(), LIMIT)?);
    }
    for call in outstanding {
        sum += u64::from_le_bytes((*client.finish(call, LIMIT)?).try_into()?);
    }
    println!("the squares of 0 to {} add to {sum}", CALLS - 1);
    // One for each thread. A request that is dropped is declined; one of a server that is gone
    // fails at once, long before its time is over.
    for _ in 0..2 {
        match client.call(b"stop!", LIMIT) {
            Err(CallError::Declined | CallError::Ended(_)) => {}
            other => return Err(format!("not expected: {other:?}").into()),
        }
    }
    println!("{}", client.explain());
    Ok(())
}

fn main() -> Result {
    common::run(server, &[client])
}
