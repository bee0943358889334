//! A connection between two processes that says when the other one is gone: dead, hanging, or cut off.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

use super::Pulse;
use super::frame::{MOST, read_frame, write_frame};
use crate::error::{Error, Result};

/// Signs of life within the time after which a peer counts as lost.
const BEATS: u32 = 6;

/// One end of a connection. Signs of life go to and fro as long as it is held; an empty frame is one.
///
/// A receiver that does not take frames in time lets the other side wait, as TCP does. It is not lost for that: signs of
/// life are missed only while frames are waited for.
#[derive(Debug)]
pub struct Link {
    writer: Mutex<TcpStream>,
    socket: TcpStream,
    _beat: Sender<()>,
}

impl Link {
    /// Starts a link on a connection. While `pulse` says that this process hangs it gives no signs of life. `hear` takes each frame, and ends the link by saying false; `lost` hears once why the
    /// link has ended, unless `hear` has ended it.
    ///
    /// # Errors
    /// External, of the connection.
    pub fn start(
        stream: TcpStream,
        (timeout, pulse): (Duration, &Pulse),
        mut hear: impl FnMut(Vec<u8>) -> bool + Send + 'static,
        lost: impl FnOnce(String) + Send + 'static,
    ) -> Result<Arc<Link>> {
        let failed = |e| Error::external("CONNECTION_FAILED", "a connection cannot be used").caused_by(e);
        let writer = stream.try_clone().map_err(failed)?;
        let mut reader = stream.try_clone().map_err(failed)?;
        reader.set_read_timeout(Some(timeout)).map_err(failed)?;
        let (beat, ended) = bounded::<()>(0);
        let link = Arc::new(Link { writer: Mutex::new(writer), socket: stream, _beat: beat });
        let (beating, pulse) = (Arc::downgrade(&link), pulse.clone());
        std::thread::spawn(move || {
            while ended.recv_timeout(timeout / BEATS) == Err(RecvTimeoutError::Timeout) {
                // A failure shows where frames are read.
                let Some(link) = beating.upgrade() else { break };
                if pulse.is_there() && link.send(&[]).is_err() {
                    break;
                }
            }
        });
        std::thread::spawn(move || {
            let why = loop {
                match read_frame(&mut reader, MOST) {
                    Ok(frame) if frame.is_empty() => {}
                    Ok(frame) => {
                        if !hear(frame) {
                            return;
                        }
                    }
                    Err(error) => break error,
                }
            };
            // Whoever is at writing to it would wait for ever.
            let _ = reader.shutdown(Shutdown::Both);
            lost(match why.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => "its connection was closed".to_owned(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    format!("it has given no sign of life for {timeout:?}")
                }
                _ => why.to_string(),
            });
        });
        Ok(link)
    }

    /// Sends a frame, whose body comes in parts; waits while the other side does not take it.
    ///
    /// # Errors
    /// Of the connection.
    pub fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        write_frame(&mut *writer, parts)
    }

    /// Ends the connection, also for whoever is at sending.
    pub fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::time::Instant;

    use crossbeam_channel::unbounded;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (here, listener.accept().unwrap().0)
    }

    /// A link whose frames and end are told to a channel.
    fn start(stream: TcpStream, timeout: u64) -> (Arc<Link>, crossbeam_channel::Receiver<String>) {
        let (told, heard) = unbounded();
        let end = told.clone();
        let link = Link::start(
            stream,
            (Duration::from_millis(timeout), &Pulse::default()),
            move |frame| told.send(String::from_utf8(frame).unwrap()).is_ok(),
            move |why| end.send(format!("lost: {why}")).unwrap(),
        );
        (link.unwrap(), heard)
    }

    #[test]
    fn frames_arrive_in_order_and_silence_between_them_is_no_loss() {
        let (a, b) = pair();
        let ((a, from_b), (b, from_a)) = (start(a, 300), start(b, 300));
        for i in 0..3 {
            // Longer than the timeout: signs of life keep the link.
            assert!(from_b.recv_timeout(Duration::from_millis(350)).is_err());
            a.send(&[b"a", i.to_string().as_bytes()]).unwrap();
            assert_eq!(from_a.recv().unwrap(), format!("a{i}"));
        }
        b.send(&[b"done"]).unwrap();
        assert_eq!(from_b.recv().unwrap(), "done");
        drop(b);
        assert_eq!(from_b.recv().unwrap(), "lost: its connection was closed");
    }

    #[test]
    fn a_silent_peer_is_lost_and_whoever_writes_to_it_is_freed() {
        let (a, b) = pair();
        let (link, heard) = start(a, 200);
        let begin = Instant::now();
        let writing = std::thread::spawn(move || {
            let block = vec![1; 1 << 20];
            while link.send(&[&block]).is_ok() {}
        });
        assert_eq!(heard.recv().unwrap(), "lost: it has given no sign of life for 200ms");
        writing.join().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(5));
        drop(b);
    }

    #[test]
    fn a_frame_that_is_too_large_ends_the_link() {
        let (a, mut b) = pair();
        let (_link, heard) = start(a, 5000);
        b.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(heard.recv().unwrap().starts_with("lost: a message of 4294967295 bytes"));
    }
}
