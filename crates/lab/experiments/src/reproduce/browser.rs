//! The browsers: one page of our own, its contents made anew again and again, and the memory of all processes of the
//! browser meanwhile.
//!
//! ```text
//!  our server on loopback ──► page: steps of DOM and objects, most of them dropped ──► /done ── rest ── killed
//!                             │◄──────────── memory of all processes, sampled ────────────────►│
//! ```
//!
//! A browser is started in a PID namespace of its own, which ends when the process that made it does, which ends when
//! this one does: no process of it is left, whatever happens. It is headless or on a virtual screen that it does not
//! share; its profile is new; it knows no other server than ours.
//!
//! On our heap Firefox has `PAGEMILL_DETOUR=1`, for its own allocator comes before a preloaded one, and WebKit
//! `Malloc=1`, which makes it call malloc at all. The cell fails unless a heap of ours has the memory of a page in it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagemill_launch::stats_page;
use pagemill_model::Pid;

use super::arm::{Allocator, Arm};
use super::experiment::{Browser, Browsing};
use super::outcome::{Outcome, checked, last_line};
use super::packages::{Unsuitable, find};
use super::target::{Program, Stage, Target};

/// The page; `STEPS` stands for a number.
const PAGE: &str = include_str!("browser.html");
/// After its start a browser should have fetched the page, and be through with it, by then.
const START: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(420);
/// What a heap with a page in it has at least.
const SOME: u64 = 8 << 20;
/// Longest request that is read.
const REQUEST: u64 = 16 << 10;

/// Settings of a new Firefox profile: nothing is fetched, sent, checked or asked.
const PREFERENCES: &[(&str, &str)] = &[
    ("app.normandy.enabled", "false"),
    ("app.update.enabled", "false"),
    ("browser.safebrowsing.malware.enabled", "false"),
    ("browser.safebrowsing.phishing.enabled", "false"),
    ("browser.shell.checkDefaultBrowser", "false"),
    ("browser.startup.homepage_override.mstone", "\"ignore\""),
    ("datareporting.policy.dataSubmissionEnabled", "false"),
    // A process that others are forked from has no helper thread, and so none of them has.
    ("dom.ipc.forkserver.enable", "false"),
    ("extensions.update.enabled", "false"),
    ("network.captive-portal-service.enabled", "false"),
    ("network.connectivity-service.enabled", "false"),
    ("services.settings.server", "\"http://127.0.0.1:9/\""),
    ("toolkit.telemetry.enabled", "false"),
];

/// The programs that a browser needs, each with its package.
pub fn needs(browser: Browser) -> Vec<(&'static str, &'static str)> {
    let namespaces = [("unshare", "util-linux"), ("setpriv", "util-linux")];
    let own = match browser {
        Browser::Firefox => vec![("firefox-esr", "firefox-esr")],
        Browser::Webkit => vec![("Xvfb", "xvfb"), (MINI_BROWSER, "libwebkit2gtk-4.1-0")],
    };
    own.into_iter().chain(namespaces).collect()
}

/// WebKitGTK's own, which is on no path.
const MINI_BROWSER: &str = "/usr/lib/x86_64-linux-gnu/webkit2gtk-4.1/MiniBrowser";

/// Firefox itself; what is on the path is a script.
const FIREFOX: &str = "/usr/lib/firefox-esr/firefox-esr";

/// Why it cannot run here, if it cannot.
pub fn missing(browser: Browser) -> Option<String> {
    let lacking = needs(browser).into_iter().find_map(|(name, package)| find(name, package).err());
    let lacking = lacking.map(|why| why.to_string());
    lacking.or_else(|| {
        let made = Command::new("unshare")
            .args(["--fork", "--pid", "--mount-proc", "true"])
            .stderr(Stdio::null())
            .status();
        let may = made.is_ok_and(|status| status.success());
        (!may).then(|| "a PID namespace of its own needs root (run: sudo pagemill …)".to_owned())
    })
}

/// How it is started, without the page's address, which is the last argument.
///
/// # Errors
/// Where it is not installed.
pub fn program(browser: Browser, to: Program) -> Result<Program> {
    if let Some(why) = missing(browser) {
        return Err(Unsuitable(why).into());
    }
    let mut arguments: Vec<OsString> = ["--pdeathsig", "KILL", "--", "unshare", "--fork", "--pid"]
        .into_iter()
        .chain(["--mount-proc", "--kill-child=KILL", "--"])
        .map(Into::into)
        .collect();
    let file = if browser == Browser::Firefox { FIREFOX } else { MINI_BROWSER };
    arguments.push(file.into());
    Ok(Program { path: find("setpriv", "util-linux")?, arguments, below: true, ..to })
}

/// The page at `scale`: fewer steps.
pub fn scaled(page: &Browsing, scale: f64) -> Browsing {
    let steps = ((f64::from(page.steps) * scale) as u32).max(2);
    Browsing { steps, ..page.clone() }
}

/// Runs one cell.
///
/// # Errors
/// Where the browser does not come through with the page, and where its arm was not what it says.
pub fn run(
    stage: &Stage<'_>,
    directory: &Path,
    mut program: Program,
    arm: &Arm,
    page: &Browsing,
) -> Result<Outcome> {
    let server = Server::start(page.steps)?;
    let room = tempfile::Builder::new().prefix("browser-").tempdir_in(directory)?;
    let firefox = program.arguments.last().is_some_and(|last| last == FIREFOX);
    let set = |name: &str, value: &Path| (name.to_owned(), OsString::from(value));
    program.environment.extend([set("HOME", room.path()), set("XDG_RUNTIME_DIR", room.path())]);
    let ours = arm.allocator != Allocator::Own;
    let mut put = |name: &str, value: &str| program.environment.push((name.into(), value.into()));
    let _screen = if firefox {
        // Its processes may not look at a heap that is not theirs; as root there is no sandbox anyway.
        put("MOZ_DISABLE_CONTENT_SANDBOX", "1");
        put("MOZ_CRASHREPORTER_DISABLE", "1");
        if ours {
            put("PAGEMILL_DETOUR", "1");
        }
        program.arguments.extend(["--headless", "--no-remote", "--profile"].map(Into::into));
        program.arguments.push(profile(room.path())?.into());
        None
    } else {
        let screen = Screen::start(stage)?;
        put("DISPLAY", &screen.display);
        put("GDK_BACKEND", "x11");
        put("GSETTINGS_BACKEND", "memory");
        put("LIBGL_ALWAYS_SOFTWARE", "1");
        put("NO_AT_BRIDGE", "1");
        put("WEBKIT_DISABLE_COMPOSITING_MODE", "1");
        if ours {
            put("Malloc", "1");
        }
        Some(screen)
    };
    program.arguments.push(format!("http://{}/", server.address).into());
    let mut target = stage.start(arm, &program)?;
    let finished = wait(stage, &mut target, &server, page).with_context(|| {
        let log = fs::read_to_string(&program.complaints).unwrap_or_default();
        format!("{}: {:?}", if firefox { "firefox" } else { "webkit" }, last_line(&log))
    })?;
    let outcome = measured(stage, &target, arm, &finished);
    let mut seen = target.kill(&stage.linux)?;
    let (metrics, heap, digest) = outcome?;
    seen.samples.retain(|sample| sample.seconds >= finished.began);
    seen.heap = heap;
    let mut outcome = checked(arm, seen)?;
    outcome.metrics.extend(metrics);
    outcome.digest = Some(digest);
    Ok(outcome)
}

/// When the page began and what it said at its end, seconds since the start.
struct Finished {
    began: f64,
    seconds: f64,
    objects: u64,
}

/// Waits until the page says that it is done, and rests.
fn wait(
    stage: &Stage<'_>,
    target: &mut Target,
    server: &Server,
    page: &Browsing,
) -> Result<Finished> {
    let mut began = None;
    loop {
        match server.said.try_recv() {
            Ok(PageReport::Began) => began = began.or(Some(target.elapsed().as_secs_f64())),
            Ok(PageReport::Done { steps, milliseconds, objects }) => {
                ensure!(steps == page.steps, "the page made {steps} steps, not {}", page.steps);
                let began = began.context("the page was done before it was fetched")?;
                stage.wait(Duration::from_secs_f64(page.rest_seconds))?;
                return Ok(Finished { began, seconds: milliseconds / 1e3, objects });
            }
            Err(_) => {}
        }
        ensure!(target.is_running(), "it ended before the page was done");
        let elapsed = target.elapsed();
        ensure!(began.is_some() || elapsed < START, "no page fetched in {} s", START.as_secs());
        ensure!(elapsed < PATIENCE, "the page was not done in {} s", PATIENCE.as_secs());
        stage.wait(Duration::from_millis(20))?;
    }
}

type Figures = (HashMap<String, f64>, Option<stats_page::Snapshot>, u64);

/// The figures at the end, while all processes are there; of our heaps the fullest.
fn measured(stage: &Stage<'_>, target: &Target, arm: &Arm, finished: &Finished) -> Result<Figures> {
    let linux = &stage.linux;
    let processes = target.below(linux);
    let mut heap: Option<stats_page::Snapshot> = None;
    let (mut heaps, mut saved) = (0, 0);
    if arm.allocator != Allocator::Own {
        for &pid in &processes {
            let page = stats_page::locate(linux, pid).ok().flatten();
            let Some(one) = page.and_then(|page| page.read().ok().flatten()) else { continue };
            heaps += 1;
            saved += one.saved_bytes.unwrap_or(0);
            let footprint = |of: &stats_page::Snapshot| of.footprint_bytes.unwrap_or(0);
            if heap.as_ref().is_none_or(|other| footprint(other) < footprint(&one)) {
                heap = Some(one);
            }
        }
        let fullest = heap.as_ref().and_then(|heap| heap.live_bytes).unwrap_or(0);
        ensure!(
            fullest >= SOME,
            "the fullest of {heaps} heaps of ours has {fullest} bytes of objects: the browser allocates elsewhere"
        );
    }
    let used = |pid: &Pid| linux.stat(*pid).ok().map(|stat| stat.user + stat.system);
    let cpu: Duration = processes.iter().filter_map(used).sum();
    let sample = target.sample(linux).context("the browser is gone")?;
    let mut metrics: HashMap<String, f64> = [
        ("cpu".to_owned(), cpu.as_secs_f64()),
        ("wall".to_owned(), finished.seconds),
        ("final_pss".to_owned(), sample.pss as f64),
        ("processes".to_owned(), processes.len() as f64),
    ]
    .into();
    if heap.is_some() {
        metrics.insert("heap_saved".to_owned(), saved as f64);
    }
    metrics.extend(sample.charge.map(|bytes| ("final_charge".to_owned(), bytes as f64)));
    Ok((metrics, heap, finished.objects))
}

/// A new profile.
fn profile(room: &Path) -> Result<PathBuf> {
    let directory = room.join("profile");
    fs::create_dir(&directory)?;
    let lines =
        PREFERENCES.iter().map(|(name, value)| format!("user_pref(\"{name}\", {value});\n"));
    fs::write(directory.join("user.js"), lines.collect::<String>())?;
    Ok(directory)
}

/// A virtual screen, which goes when this is dropped.
struct Screen {
    server: Child,
    display: String,
}

impl Screen {
    fn start(stage: &Stage<'_>) -> Result<Self> {
        let mut command = Command::new(find("setpriv", "util-linux")?);
        command.args(["--pdeathsig", "KILL", "--", "Xvfb", "-displayfd", "1", "-screen", "0"]);
        command.args(["1024x768x24", "-nolisten", "tcp"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        stage.signals.restore_in(&mut command);
        let mut server = command.spawn().context("cannot start Xvfb")?;
        let mut number = String::new();
        if let Some(out) = server.stdout.take() {
            // It writes the number when it can be used, or ends.
            BufReader::new(out).read_line(&mut number)?;
        }
        let screen = Self { server, display: format!(":{}", number.trim()) };
        ensure!(screen.display.len() > 1, "Xvfb ended at its start");
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.server.kill().and_then(|()| self.server.wait());
    }
}

/// What the page says through the requests that it makes.
#[derive(Debug, PartialEq)]
pub enum PageReport {
    /// It is being shown.
    Began,
    /// It has done its steps.
    Done {
        /// Steps done.
        steps: u32,
        /// Time that they took.
        milliseconds: f64,
        /// Objects that live at the end.
        objects: u64,
    },
}

/// A server of one page, on loopback; its thread ends with this process or when this is dropped.
struct Server {
    address: std::net::SocketAddr,
    said: mpsc::Receiver<PageReport>,
}

impl Server {
    fn start(steps: u32) -> Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port on loopback")?;
        let address = listener.local_addr()?;
        let (tell, said) = mpsc::channel();
        let page = PAGE.replace("STEPS", &steps.to_string());
        pagemill_kernel::process::thread::start(move || {
            for connection in listener.incoming() {
                let Ok(connection) = connection else { continue };
                // A browser that breaks a connection off makes another.
                if let Ok(Some(said)) = answer(connection, &page)
                    && tell.send(said).is_err()
                {
                    return;
                }
            }
        })?;
        Ok(Self { address, said })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody listens any more: the next connection, this one, ends the thread.
        let (_, closed) = mpsc::channel();
        self.said = closed;
        let request = |mut stream: TcpStream| stream.write_all(b"GET / HTTP/1.0\r\n\r\n");
        let _ = TcpStream::connect(self.address).and_then(request);
    }
}

/// Answers one request.
fn answer(connection: TcpStream, page: &str) -> std::io::Result<Option<PageReport>> {
    connection.set_read_timeout(Some(Duration::from_secs(5)))?;
    let began = Instant::now();
    let mut reader = BufReader::new((&connection).take(REQUEST));
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 && began.elapsed() < Duration::from_secs(5) {
        line.clear();
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let said = said(path);
    let (status, body) = match (path, &said) {
        ("/", _) => ("200 OK", page),
        (_, Some(_)) => ("200 OK", "done"),
        _ => ("404 Not Found", ""),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n",
        body.len()
    );
    (&connection).write_all(head.as_bytes())?;
    (&connection).write_all(body.as_bytes())?;
    Ok(said)
}

/// What a request for this path says; `None` if nothing.
pub fn said(path: &str) -> Option<PageReport> {
    if path == "/" {
        return Some(PageReport::Began);
    }
    let mut numbers = path.strip_prefix("/done?")?.split(',');
    Some(PageReport::Done {
        steps: numbers.next()?.parse().ok()?,
        milliseconds: numbers.next()?.parse().ok().filter(|time: &f64| time.is_finite())?,
        objects: numbers.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_page_says_is_understood_and_nothing_else() {
        assert_eq!(said("/"), Some(PageReport::Began));
        let done = PageReport::Done { steps: 60, milliseconds: 6621.5, objects: 7 };
        assert_eq!(said("/done?60,6621.5,7"), Some(done));
        for path in ["/favicon.ico", "/done?", "/done?60", "/done?a,1,2", "/done?1,inf,2", ""] {
            assert_eq!(said(path), None, "{path}");
        }
    }

    #[test]
    fn the_server_hands_the_page_out_and_hears_of_its_end() {
        let server = Server::start(3).unwrap();
        let ask = |path: &str| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        assert!(ask("/").contains("n < 3"), "the page knows its steps");
        assert!(ask("/favicon.ico").starts_with("HTTP/1.1 404"));
        assert!(ask("/done?3,1,2").starts_with("HTTP/1.1 200"));
        let said: Vec<PageReport> = (0..2).map(|_| server.said.recv().unwrap()).collect();
        assert_eq!(
            said,
            [PageReport::Began, PageReport::Done { steps: 3, milliseconds: 1.0, objects: 2 }]
        );
    }
}
