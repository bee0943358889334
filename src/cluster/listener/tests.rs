use std::io::{Read, Write};
use std::time::Instant;

use super::super::handshake::{Purpose, connect};
use super::super::{PEER_MISSING, PROTOCOL};
use super::*;

fn expected(index: usize) -> Expected {
    Expected {
        release: "1".into(),
        pipeline: "shop".into(),
        definitions: "abc".into(),
        index,
        processes: 3,
        workers: 2,
    }
}

struct Place {
    listening: Listening,
    address: String,
    told: Arc<Mutex<Vec<String>>>,
}

fn open() -> Place {
    let listener = Listener::loopback().unwrap();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&told);
    let say: Say = Arc::new(move |line| log.lock().unwrap().push(line.to_owned()));
    let listening = listener.listen(expected(0), Secret::new("s"), say).unwrap();
    Place { listening, address: listener.address().to_string(), told }
}

impl Place {
    /// Waits until something was told that contains `part`.
    #[track_caller]
    fn hears(&self, part: &str) {
        let begin = Instant::now();
        while !self.told.lock().unwrap().iter().any(|line| line.contains(part)) {
            assert!(begin.elapsed() < Duration::from_secs(20), "{part}: {:?}", self.told.lock().unwrap());
            std::thread::yield_now();
        }
    }

    fn reach(&self, claim: &Claim, secret: &str) -> Result<TcpStream> {
        connect(&self.address, claim, &Secret::new(secret), Duration::from_secs(20), &|| true)
    }
}

#[test]
fn the_right_peer_comes_in_whatever_else_knocks() {
    let place = open();
    let mut probe = TcpStream::connect(&place.address).unwrap();
    probe.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let idle = TcpStream::connect(&place.address).unwrap();
    drop(TcpStream::connect(&place.address).unwrap());
    let mut half = TcpStream::connect(&place.address).unwrap();
    half.write_all(b"silverflow").unwrap();
    let mut huge = TcpStream::connect(&place.address).unwrap();
    huge.write_all(&[b"silverflow".as_slice(), &PROTOCOL.to_le_bytes(), &[0xff; 36]].concat()).unwrap();
    let mut old = TcpStream::connect(&place.address).unwrap();
    old.write_all(&[b"silverflow".as_slice(), &(PROTOCOL + 1).to_le_bytes()].concat()).unwrap();
    let begin = Instant::now();
    let claim = expected(2).claim(Purpose::Control, 0);
    let mut there = place.reach(&claim, "s").unwrap();
    let mut here = place.listening.arrivals.recv().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(4), "an idle connection held up a peer");
    assert_eq!(here.claim, claim);
    there.write_all(b"x").unwrap();
    let mut byte = [0];
    here.stream.read_exact(&mut byte).unwrap();
    place.hears("does not speak silverflow's protocol");
    place.hears("closed before it said who it is");
    place.hears("a message of 4294967295 bytes");
    place.hears(&format!("its version of the protocol is {}", PROTOCOL + 1));
    place.hears("it says nothing");
    drop((idle, half));
}

#[test]
fn who_claims_something_else_is_refused_and_hears_why() {
    let place = open();
    let right = expected(1).claim(Purpose::Data { generation: 1, session: 1 }, 0);
    type Change = fn(&mut Claim);
    let cases: [(&str, Change); 9] = [
        ("RELEASE_DIFFERS", |c| c.release = "2".into()),
        ("PIPELINE_DIFFERS", |c| c.pipeline = "other".into()),
        ("DEFINITIONS_DIFFER", |c| c.definitions = "abd".into()),
        ("PROCESSES_DIFFER", |c| c.processes = 2),
        ("PROCESS_NOT_EXPECTED", |c| c.from = 3),
        ("PROCESS_NOT_EXPECTED", |c| c.from = 0),
        ("PROCESS_NOT_EXPECTED", |c| c.from = usize::MAX),
        ("PROCESS_NOT_EXPECTED", |c| c.to = 2),
        ("WORKERS_DIFFER", |c| c.workers = 4),
    ];
    for (code, change) in cases {
        let mut claim = right.clone();
        change(&mut claim);
        let error = place.reach(&claim, "s").unwrap_err();
        assert_eq!((error.code(), error.fault().exit_code()), (code, 2), "{error}");
    }
    let error = place.reach(&right, "t").unwrap_err();
    assert_eq!(error.code(), "SECRET_DIFFERS", "{error}");
    place.hears("does not know the secret");
    assert!(place.listening.arrivals.is_empty());
    place.reach(&right, "s").unwrap();
    assert_eq!(place.listening.arrivals.recv().unwrap().claim, right);
}

#[test]
fn an_acceptor_without_the_secret_is_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let false_one = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        accept(&stream, &expected(0), &Secret::new("guess"))
    });
    let claim = expected(1).claim(Purpose::Control, 0);
    let error = connect(&address, &claim, &Secret::new("s"), Duration::from_secs(20), &|| true).unwrap_err();
    assert_eq!(error.code(), "SECRET_DIFFERS");
    assert!(false_one.join().unwrap().is_err());
}

#[test]
fn a_peer_that_is_not_there_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let claim = expected(1).claim(Purpose::Control, 0);
    let error = connect(&free, &claim, &Secret::default(), Duration::from_millis(120), &|| true).unwrap_err();
    assert_eq!((error.code(), error.fault().exit_code()), (PEER_MISSING, 3));
    assert!(error.to_string().contains(&free), "{error}");
}

#[test]
fn a_closed_door_can_be_opened_again() {
    let listener = Listener::loopback().unwrap();
    for _ in 0..2 {
        let listening = listener.listen(expected(0), Secret::new("s"), Arc::new(|_| {})).unwrap();
        let claim = expected(1).claim(Purpose::Control, 0);
        let address = listener.address().to_string();
        connect(&address, &claim, &Secret::new("s"), Duration::from_secs(20), &|| true).unwrap();
        assert_eq!(listening.arrivals.recv().unwrap().claim.from, 1);
    }
}

#[test]
fn idle_connections_that_keep_coming_shut_nobody_out() {
    let place = open();
    let begin = Instant::now();
    let mut idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&place.address).unwrap()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let (address, stopped) = (place.address.clone(), Arc::clone(&stop));
    let more = std::thread::spawn(move || {
        let mut held = Vec::new();
        while !stopped.load(Ordering::SeqCst) && held.len() < 2_000 {
            held.extend(TcpStream::connect(&address));
            std::thread::park_timeout(Duration::from_millis(2));
        }
    });
    for process in [1, 2, 1, 2] {
        let claim = expected(process).claim(Purpose::Control, 0);
        place.reach(&claim, "s").unwrap();
        assert_eq!(place.listening.arrivals.recv().unwrap().claim, claim);
    }
    assert!(begin.elapsed() < Duration::from_secs(4), "peers had to wait until others were given up");
    stop.store(true, Ordering::SeqCst);
    more.join().unwrap();
    place.hears("it gave way to others");
    // The first ones are closed, and not only forgotten.
    let first = idle.first_mut().unwrap();
    first.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(matches!(first.read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn the_address_with_most_connections_gives_way() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let from = |text: &str| text.parse::<SocketAddr>().unwrap();
    let open: BTreeMap<u64, (SocketAddr, TcpStream)> = [
        (1, (from("10.0.0.1:5"), stream())),
        (2, (from("10.0.0.2:5"), stream())),
        (4, (from("10.0.0.2:6"), stream())),
        (7, (from("10.0.0.3:5"), stream())),
    ]
    .into();
    assert_eq!(most(&open), Some(2));
    assert_eq!(most(&BTreeMap::new()), None);
}

#[test]
fn a_caller_without_the_secret_gets_nothing_to_try_guesses_on() {
    let place = open();
    let mut caller = TcpStream::connect(&place.address).unwrap();
    let preamble = [b"silverflow".as_slice(), &PROTOCOL.to_le_bytes()].concat();
    caller.write_all(&[&preamble, &[7; 32][..]].concat()).unwrap();
    let mut answer = [0; 14 + 32];
    caller.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..14], preamble);
    // A proof that is none, and a claim.
    caller.write_all(&[&40u32.to_le_bytes()[..], &[1; 40]].concat()).unwrap();
    let mut rest = Vec::new();
    caller.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, [0; 4], "an empty frame and no proof");
    place.hears("does not know the secret");
}
