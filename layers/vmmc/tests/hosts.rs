//! Two programs on two hosts, here two nodes with directories of their own: packets go over TLS.
#![cfg(feature = "tls")]

use hamlyn::Access;
use hamlyn_vmmc::{Combining, Config, Error, Exporting, PAGE, Users, Vmmc};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

fn config(dir: &Path) -> Config {
    let secret = dir.join("secret");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&secret).unwrap();
    writeln!(file, "{}", "7f".repeat(32)).unwrap();
    let mut config = Config::from_env().unwrap();
    let node = config.node.dir(dir).secret(secret);
    config.node = node.listen("127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap());
    config
}

fn until(mut holds: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come true");
        std::thread::yield_now();
    }
}

#[test]
fn updates_notifications_gets_and_bindings_go_to_another_host_and_back_over_one_link() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [there, here] = [0, 1].map(|at| Vmmc::new(config(dirs[at].path())).unwrap());
    let (told, tell) = mpsc::channel();
    there.start_thread(move |notification| drop(told.send(notification))).unwrap();
    let all = || Exporting { users: Users::All, ..Exporting::default() };
    let buffer = there.export("all", 1 << 20, all()).unwrap();
    let _same = there.export("same", 4096, Exporting::default()).unwrap();
    let name = |vmmc: &Vmmc, name: &str| {
        vmmc.serve(name, Access::SameUser).unwrap();
        format!("hamlyn://{}/{name}", vmmc.clan().manager().listens_at().unwrap())
    };
    let (to, back) = (name(&there, "there"), name(&here, "here"));
    let bytes_of = |at: u64, length: usize| {
        let mut bytes = vec![0; length];
        buffer.region().read(at, &mut bytes).unwrap();
        bytes
    };

    // The kernel proves nobody's user to another host.
    assert!(matches!(here.import(&to, "same", LIMIT), Err(Error::Refused(_))));
    let proxy = here.import(&to, "all", LIMIT).unwrap();
    let path = proxy.aperture().explain().unwrap();
    assert!(path.contains("TLS"), "{path}");

    let bytes: Vec<u8> = (0..200_003u32).map(|n| (n / 5) as u8).collect();
    proxy.send(7, &bytes, LIMIT).unwrap();
    proxy.send_notify(300_000, &bytes[..5000], 9, LIMIT).unwrap();
    let notification = tell.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!((&*notification.buffer, notification.word), ("all", 9));
    // What was sent before it is here.
    assert!(bytes_of(7, bytes.len()) == bytes && bytes_of(300_000, 5000) == bytes[..5000]);
    let mut got = vec![0; bytes.len()];
    proxy.get(7, &mut got, LIMIT).unwrap();
    assert!(got == bytes);

    let mut bound = proxy.bind(400_000, 4096, Combining::default(), Some(3), LIMIT).unwrap();
    for at in (0..4096).step_by(8) {
        bound.store_u64(at, at as u64).unwrap();
    }
    bound.flush().unwrap();
    for _ in 0..bound.counts().1 {
        assert_eq!(tell.recv_timeout(Duration::from_secs(60)).unwrap().word, 3);
    }
    assert!(bytes_of(400_000, 4096) == bound.bytes());

    let memory = here.export("memory", 4 * PAGE as u64, all()).unwrap();
    let start = memory.region().address().unwrap();
    // SAFETY: the buffer lives longer.
    let mut mirror = unsafe { proxy.mirror(512 << 10, start, 4 * PAGE, LIMIT) }.unwrap();
    for page in 0..4 {
        // SAFETY: inside of the buffer, which only this thread and the library's deposits write.
        unsafe { start.add(page * PAGE + 11).write_volatile(page as u8 + 1) };
    }
    mirror.flush().unwrap();
    assert_eq!(mirror.counts(), (1, 4, 4), "{:?}", mirror.tracking());
    until(|| {
        (0..4).all(|page| bytes_of((512 << 10) + (page * PAGE) as u64 + 11, 1) == [page as u8 + 1])
    });

    // Back, over the same link.
    let returned = std::thread::scope(|scope| {
        let importing = scope.spawn(|| there.import(&back, "memory", LIMIT).unwrap());
        until(|| {
            here.poll().unwrap();
            importing.is_finished()
        });
        importing.join().unwrap()
    });
    returned.send(100, b"back", LIMIT).unwrap();
    until(|| {
        here.poll().unwrap();
        memory.region().load(96).unwrap() != 0
    });
    mirror.flush().unwrap();
    assert_eq!(mirror.counts(), (2, 4, 4));
    until(|| {
        here.poll().unwrap();
        [&there, &here].map(|vmmc| vmmc.clan().manager().lock().links().count()) == [1, 1]
    });

    drop((returned, buffer, there));
    until(|| {
        here.poll().unwrap();
        proxy.check().is_err()
    });
}
