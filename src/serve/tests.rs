//! Tests of the routes without sockets: access, forms, downloads, shared and stopped computations.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use proptest::prelude::*;
use serde_json::Value;
use tower::ServiceExt;

use super::access::{Access, Token};
use super::answer::{AnswerError, Answerer, Progress};
use super::form::{Field, Form, StudyText};
use super::jobs::{JobError, Jobs, LEASE, Submission, Ticket};
use super::routes::{POLICY, router};

/// Small forms whose answers are computed in milliseconds.
const SMALL: &str = "machine_b=none&machine_c=none&nodes_a=1&model=llama-3-8b&global_batch=32";

fn answering_jobs() -> Arc<Jobs> {
    let answerer = Answerer::default();
    Arc::new(Jobs::new(Box::new(move |study, progress| answerer.answer(study, progress))))
}

fn server() -> Router {
    router(Access::default(), answering_jobs())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

/// Reply of a server: status, headers and body.
struct Reply {
    response: Response<()>,
    body: String,
}

impl Reply {
    fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    fn header(&self, name: header::HeaderName) -> &str {
        self.response.headers().get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

async fn ask(server: &Router, request: Request<Body>) -> Reply {
    let (parts, body) = server.clone().oneshot(request).await.unwrap().into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    Reply { response: Response::from_parts(parts, ()), body: String::from_utf8(body.to_vec()).unwrap() }
}

fn get(address: &str) -> Request<Body> {
    Request::get(address).header("host", "localhost:8380").body(Body::empty()).unwrap()
}

fn post(address: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post(address).header("host", "localhost:8380");
    request.header("content-type", "application/x-www-form-urlencoded").body(body.into()).unwrap()
}

/// Sends a form as the page's script does, until there is an answer.
async fn answer(server: &Router, form: &str) -> Reply {
    let mut reply = ask(server, post("/answers", form.to_owned())).await;
    while reply.json()["state"] == "running" {
        let ticket = reply.json()["ticket"].as_str().unwrap().to_owned();
        reply = ask(server, get(&format!("/answers/{ticket}"))).await;
    }
    reply
}

#[test]
fn every_response_has_the_security_headers() {
    runtime().block_on(async {
        let server = server();
        let foreign = Request::get("/").header("host", "example.org").body(Body::empty()).unwrap();
        let deleted = Request::delete("/").header("host", "localhost").body(Body::empty()).unwrap();
        let requests =
            ["/", "/report.css", "/report.js", "/serve.css", "/serve.js", "/study.toml", "/none", "/?years=x"];
        for (request, status) in
            requests.iter().map(|address| get(address)).zip([200, 200, 200, 200, 200, 200, 404, 400]).chain([
                (foreign, 403),
                (deleted, 405),
                (post("/answers", "years=x"), 400),
                (post("/answers", vec![b'x'; 20_000]), 413),
                (post("/", ""), 405),
                (get("/answers"), 405),
                (get("/answers/0"), 404),
                (get(&format!("/?{}", "x".repeat(9000))), 414),
            ])
        {
            let name = request.uri().path().to_owned();
            let reply = ask(&server, request).await;
            assert_eq!(reply.status(), status, "{name}: {}", reply.body);
            assert_eq!(reply.header(header::CONTENT_SECURITY_POLICY), POLICY, "{name}");
            assert_eq!(reply.header(header::X_CONTENT_TYPE_OPTIONS), "nosniff", "{name}");
            assert_eq!(reply.header(header::REFERRER_POLICY), "no-referrer", "{name}");
            assert_eq!(reply.header(header::CACHE_CONTROL), "no-store", "{name}");
        }
    });
}

#[test]
fn page_loads_only_its_own_files() {
    let page = runtime().block_on(async { ask(&server(), get(&format!("/?{SMALL}"))).await.body });
    for forbidden in ["http:", "https:", "//", " style=", "<style", " onclick", "javascript:"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert_eq!(page.matches("<script").count(), page.matches("<script src=\"").count());
    for field in Field::all() {
        let key = field.key();
        assert!(page.contains(&format!("<label for=\"{key}\">")), "{key}");
        assert!(page.contains(&format!("name=\"{key}\"")), "{key}");
    }
    // The answer is part of the page, for browsers without scripts.
    assert!(page.contains("USD per million tokens"), "{page}");
}

#[test]
fn scripts_and_style_sheets_contain_no_address() {
    for text in [super::page::SCRIPT, super::page::STYLE] {
        assert!(!text.contains("http:") && !text.contains("https:") && !text.contains("url("));
    }
}

#[test]
fn answers_are_the_results_of_the_study_command() {
    let folder = tempfile::tempdir().unwrap();
    let two_users =
        ["&nodes_a=1", "&nodes_a=2&work=inference"].map(|more| format!("{}{more}", SMALL.replace("&nodes_a=1", "")));
    let expected: Vec<String> = two_users
        .iter()
        .enumerate()
        .map(|(number, form)| {
            let path = folder.path().join(number.to_string());
            std::fs::create_dir(&path).unwrap();
            let path = path.join("study.toml");
            std::fs::write(&path, StudyText::new(&Form::from_query(form).unwrap()).toml).unwrap();
            let request = crate::request::Request::new(&["study"], &[path.into()], &[]).unwrap();
            request.run(&Arc::default()).unwrap().result.unwrap()
        })
        .collect();
    runtime().block_on(async {
        let server = server();
        let addresses = two_users.each_ref().map(|form| format!("/results.json?{form}"));
        // Both users ask concurrently, twice: computed, and from the cache.
        for _ in 0..2 {
            let requests = addresses.each_ref().map(|address| {
                let (server, request) = (server.clone(), get(address));
                tokio::spawn(async move { ask(&server, request).await })
            });
            for (request, expected) in requests.into_iter().zip(&expected) {
                let reply = request.await.unwrap();
                assert_eq!((reply.status(), &reply.body), (200, expected));
            }
        }
    });
}

#[test]
fn script_receives_answers_progress_and_errors() {
    runtime().block_on(async {
        let server = server();
        let reply = answer(&server, SMALL).await;
        let json = reply.json();
        assert_eq!((reply.status(), json["state"].as_str()), (200, Some("done")), "{json}");
        assert!(json["sentence"].as_str().unwrap().contains("A: 1 x hgx-h100"), "{json}");
        assert!(json["html"].as_str().unwrap().contains("<table>"));
        let cached = ask(&server, post("/answers", SMALL)).await.json();
        assert_eq!(cached["html"], json["html"]);
        assert_eq!(Form::from_query(cached["form"]["query"].as_str().unwrap()), Form::from_query(SMALL));
        let applies: Vec<&str> =
            cached["form"]["applies"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(applies.contains(&"nodes_a") && !applies.contains(&"nodes_b") && !applies.contains(&"ttft_s"));

        let refused = answer(&server, "nodes_a=0").await;
        assert_eq!((refused.status(), refused.json()["field"].as_str()), (400, Some("nodes_a")), "{}", refused.body);
        // The study reader's errors name the field that wrote the line.
        let refused = answer(&server, &format!("{SMALL}&precision=nvfp4")).await;
        assert_eq!((refused.status(), refused.json()["field"].as_str()), (400, Some("precision")), "{}", refused.body);
        let message = refused.json()["message"].as_str().unwrap().to_owned();
        assert!(!message.contains("study.toml"), "{message}");
    });
}

#[test]
fn downloads_are_files_with_names() {
    runtime().block_on(async {
        let server = server();
        for (path, name, start) in [
            ("study.toml", "study.toml", "# Written by `fabricast serve`"),
            ("results.json", "results.json", "{\n"),
            ("report.html", "report.html", "<!DOCTYPE html>"),
        ] {
            let reply = ask(&server, get(&format!("/{path}?{SMALL}"))).await;
            assert_eq!(reply.status(), 200);
            assert_eq!(reply.header(header::CONTENT_DISPOSITION), format!("attachment; filename=\"{name}\""));
            assert!(reply.body.starts_with(start), "{path}");
            assert_eq!(ask(&server, get(&format!("/{path}?nodes_a=0"))).await.status(), 400);
        }
    });
}

#[test]
fn hostile_bodies_are_refused() {
    runtime().block_on(async {
        let server = server();
        for body in [
            "machine_a=/etc/passwd",
            "model=<script>alert(1)</script>",
            "a=1&a=1",
            "nodes_a=1e300",
            "nodes_a=%00",
            "price_a=\"\nprice_usd = 1",
            "[[candidate]]",
            "{\"work\": \"training\"}",
        ] {
            let reply = ask(&server, post("/answers", body)).await;
            assert_eq!(
                (reply.status(), reply.json()["state"].as_str()),
                (400, Some("refused")),
                "{body}: {}",
                reply.body
            );
        }
        let invalid = ask(&server, post("/answers", vec![b'm', b'=', 0xff, 0xfe, 0])).await;
        assert_eq!(invalid.status(), 400);
        let json = Request::post("/answers").header("host", "localhost").header("content-type", "application/json");
        assert_eq!(ask(&server, json.body(Body::from("{}")).unwrap()).await.status(), 415);
        let page = ask(&server, get("/?model=%3Cscript%3Ealert(1)%3C/script%3E")).await;
        assert!(page.status() == 400 && !page.body.contains("<script>"), "{}", page.body);
    });
}

#[test]
fn token_opens_the_page_once_and_then_is_a_cookie() {
    runtime().block_on(async {
        let token = Token::draw().unwrap();
        let (value, cookie) = (token.value().to_owned(), token.set_cookie());
        let access = Access { token: Some(token), names: Vec::new() };
        let base = access.base().to_owned();
        assert!(base.len() == 34 && base != "/", "{base}");
        let server = router(access, answering_jobs());
        for address in ["", "serve.js", "study.toml", "?token=", "?token=0", &format!("study.toml?token={value}")] {
            assert_eq!(ask(&server, get(&format!("{base}{address}"))).await.status(), 401, "{address}");
        }
        // Without the random path there is nothing, so that browsers need not send the cookie elsewhere.
        assert_eq!(ask(&server, get(&format!("/?token={value}"))).await.status(), 401);
        let opened = ask(&server, get(&format!("{base}?years=3&token={value}"))).await;
        assert_eq!((opened.status(), opened.header(header::LOCATION)), (303, &*format!("{base}?years=3")));
        assert_eq!(opened.header(header::SET_COOKIE), cookie);
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite"));
        assert!(cookie.ends_with(&format!("; Path={base}")), "{cookie}");
        let pair = cookie.split(';').next().unwrap();
        for (name, text, status) in [
            (header::COOKIE, pair.to_owned(), 200),
            (header::COOKIE, format!("other=1; {pair}"), 200),
            (header::COOKIE, format!("{pair}0"), 401),
            (header::AUTHORIZATION, format!("Bearer {value}"), 200),
            (header::AUTHORIZATION, format!("bearer {value}"), 200),
            (header::AUTHORIZATION, format!("Bearer {value}0"), 401),
        ] {
            let mut request = get(&base);
            request.headers_mut().insert(name, text.parse().unwrap());
            assert_eq!(ask(&server, request).await.status(), status, "{text}");
        }
    });
}

/// Computations that end only when they are stopped, or when the test ends.
struct EndlessJobs {
    jobs: Arc<Jobs>,
    /// Receives a message when a computation begins.
    started: mpsc::Receiver<()>,
    /// Dropped with the test, also if it fails: a runtime waits for its computations.
    _test: Arc<()>,
}

fn endless_jobs() -> EndlessJobs {
    let ((sender, started), test) = (mpsc::channel(), Arc::new(()));
    let running_test = Arc::downgrade(&test);
    let work = move |_: &StudyText, progress: &Progress| {
        let _ = sender.send(());
        while !progress.stop.load(Ordering::Relaxed) && running_test.strong_count() > 0 {
            std::thread::yield_now();
        }
        Err(AnswerError::Stopped)
    };
    EndlessJobs { jobs: Arc::new(Jobs::new(Box::new(work))), started, _test: test }
}

fn running(submitted: Result<Submission, JobError>) -> (Ticket, Arc<super::jobs::Job>) {
    match submitted {
        Ok(Submission::Running(ticket, job)) => (ticket, job),
        other => panic!("{other:?}"),
    }
}

#[test]
fn last_page_that_leaves_stops_a_computation() {
    runtime().block_on(async {
        let EndlessJobs { jobs, .. } = &endless_jobs();
        let now = Instant::now();
        let study = || StudyText::new(&Form::default());
        let (first, job) = running(jobs.submit(study(), now));
        let (second, same) = running(jobs.submit(study(), now));
        assert!(Arc::ptr_eq(&job, &same) && first != second);
        jobs.release(&first);
        assert!(!job.progress.stop.load(Ordering::Relaxed));
        assert_eq!(jobs.show(&first, now).err(), Some(JobError::UnknownTicket));
        // The second tab was closed without a message.
        jobs.expire(now + LEASE);
        assert!(jobs.show(&second, now).is_ok());
        jobs.expire(now + LEASE + Duration::from_millis(1));
        assert!(job.progress.stop.load(Ordering::Relaxed));
        // A stopped computation is not joined.
        let (third, new) = running(jobs.submit(study(), now));
        assert!(!Arc::ptr_eq(&job, &new));
        assert!(matches!(job.result(LEASE).await, Some(Err(AnswerError::Stopped))));
        assert!(jobs.show(&third, now).is_ok());
        jobs.release(&third);
        assert!(matches!(new.result(LEASE).await, Some(Err(AnswerError::Stopped))));
    });
}

#[test]
fn dropped_request_stops_its_computation() {
    runtime().block_on(async {
        let EndlessJobs { jobs, started, .. } = &endless_jobs();
        let server = router(Access::default(), Arc::clone(jobs));
        let request = tokio::spawn(async move { ask(&server, post("/answers", SMALL)).await });
        while started.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        let (ticket, job) = running(jobs.submit(StudyText::new(&Form::from_query(SMALL).unwrap()), Instant::now()));
        jobs.release(&ticket);
        assert!(!job.progress.stop.load(Ordering::Relaxed));
        request.abort();
        assert!(request.await.is_err());
        assert!(job.progress.stop.load(Ordering::Relaxed));
    });
}

#[test]
fn stop_button_ends_a_computation() {
    runtime().block_on(async {
        let EndlessJobs { jobs, .. } = &endless_jobs();
        let server = router(Access::default(), Arc::clone(jobs));
        let reply = ask(&server, post("/answers", SMALL)).await;
        assert_eq!((reply.status(), reply.json()["state"].as_str()), (202, Some("running")), "{}", reply.body);
        let ticket = reply.json()["ticket"].as_str().unwrap().to_owned();
        let stopped = ask(&server, post(&format!("/answers/{ticket}/stop"), "")).await;
        assert_eq!(stopped.response.status(), StatusCode::NO_CONTENT);
        assert_eq!(ask(&server, get(&format!("/answers/{ticket}"))).await.status(), 404);
    });
}

#[test]
fn too_many_computations_are_refused() {
    runtime().block_on(async {
        let EndlessJobs { jobs, .. } = &endless_jobs();
        let now = Instant::now();
        let mut tickets = Vec::new();
        let refused = (1..=512).find_map(|nodes| {
            let form = Form::from_query(&format!("nodes_a={nodes}")).unwrap();
            match jobs.submit(StudyText::new(&form), now) {
                Ok(Submission::Running(ticket, _)) => {
                    tickets.push(ticket);
                    None
                }
                other => Some(other),
            }
        });
        assert!(matches!(refused, Some(Err(JobError::Busy))), "{refused:?}");
        assert_eq!(tickets.len(), 32);
        tickets.iter().for_each(|ticket| jobs.release(ticket));
    });
}

#[test]
fn stopped_computations_count_until_they_end() {
    runtime().block_on(async {
        let jobs = &endless_jobs().jobs;
        let refused = (0..512).find_map(|_| match jobs.submit(StudyText::new(&Form::default()), Instant::now()) {
            Ok(Submission::Running(ticket, _)) => {
                jobs.release(&ticket);
                None
            }
            other => Some(other),
        });
        assert!(matches!(refused, Some(Err(JobError::Busy))), "{refused:?}");
        // Those that waited for others end at once.
        while matches!(jobs.submit(StudyText::new(&Form::default()), Instant::now()), Err(JobError::Busy)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn download_keeps_its_ticket_and_returns_it_when_the_client_leaves() {
    runtime().block_on(async {
        let EndlessJobs { jobs, started, .. } = &endless_jobs();
        let server = router(Access::default(), Arc::clone(jobs));
        let begin = Instant::now();
        let request = tokio::spawn(async move { ask(&server, get(&format!("/results.json?{SMALL}"))).await });
        while started.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        let (ticket, job) = running(jobs.submit(StudyText::new(&Form::from_query(SMALL).unwrap()), Instant::now()));
        jobs.release(&ticket);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        jobs.expire(begin + LEASE + Duration::from_millis(500));
        assert!(!job.progress.stop.load(Ordering::Relaxed));
        request.abort();
        assert!(request.await.is_err());
        assert!(job.progress.stop.load(Ordering::Relaxed));
    });
}

#[test]
fn refused_link_is_not_answered_by_another_form() {
    runtime().block_on(async {
        let server = server();
        let refused = ask(&server, get("/?nodes_a=0")).await;
        assert_eq!(refused.status(), 400);
        assert!(refused.body.contains(" data-unanswered=\"\""), "{}", refused.body);
        assert!(refused.body.contains("id=\"take\" hidden=\"\""), "{}", refused.body);
        let page = ask(&server, get(&format!("/?{SMALL}"))).await.body;
        assert!(!page.contains("data-unanswered") && page.contains("id=\"take\">"), "{page}");
    });
}

#[test]
fn links_of_other_sites_start_no_computation() {
    runtime().block_on(async {
        let EndlessJobs { jobs, started, .. } = &endless_jobs();
        let server = router(Access::default(), Arc::clone(jobs));
        let mut request = get(&format!("/?{SMALL}"));
        for (name, value) in
            [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")]
        {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let reply = ask(&server, request).await;
        assert!(reply.status() == 200 && reply.body.contains("value=\"32\""), "{}", reply.body);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(started.try_recv().is_err());
    });
}

#[test]
fn unreadable_requests_have_messages_of_the_server() {
    runtime().block_on(async {
        let server = server();
        let long = ask(&server, post("/answers", vec![b'x'; 20_000])).await;
        assert_eq!((long.status(), &*long.body), (413, "body: longer than 16384 bytes\n"));
        for request in [get("/answers/%ff"), post("/answers/%ff/stop", "")] {
            let reply = ask(&server, request).await;
            assert_eq!((reply.status(), reply.json()["state"].as_str()), (404, Some("failed")), "{}", reply.body);
        }
    });
}

#[test]
fn panic_of_a_computation_is_an_error_of_its_request() {
    runtime().block_on(async {
        let jobs = Jobs::new(Box::new(|_: &StudyText, _: &Progress| panic!("broken")));
        let server = router(Access::default(), Arc::new(jobs));
        let reply = answer(&server, SMALL).await;
        assert_eq!((reply.status(), reply.json()["state"].as_str()), (500, Some("failed")), "{}", reply.body);
        assert_eq!(ask(&server, get("/")).await.status(), 200);
    });
}

proptest! {
    #[test]
    fn any_request_has_a_response_under_the_policy(
        method in proptest::sample::select(vec!["GET", "HEAD", "POST", "PUT", "OPTIONS", "TRACE", "X"]),
        path in "/(answers|study.toml|results.json|report.html|serve.js)?(/[a-z0-9.%]{0,9}){0,2}",
        query in "([?][a-z_=&%+0-9.]{0,40})?",
        headers in proptest::collection::vec(("(host|origin|cookie|content-type|content-length|sec-fetch-site)", "[ -~]{0,30}"), 0..3),
        is_local in any::<bool>(),
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut request = Request::builder().method(method).uri(format!("{path}{query}"));
        if is_local {
            request = request.header("host", "localhost");
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let Ok(request) = request.body(Body::from(body)) else { return Ok(()) };
        let reply = runtime().block_on(async {
            let jobs = Jobs::new(Box::new(|_: &StudyText, _: &Progress| {
                Err(AnswerError::Refused(Form::from_query("nodes_a=0").unwrap_err()))
            }));
            let (parts, _) = router(Access::default(), Arc::new(jobs)).oneshot(request).await.unwrap().into_parts();
            Response::from_parts(parts, ())
        });
        prop_assert!(reply.status().as_u16() < 500, "{reply:?}");
        let policy = reply.headers().get(header::CONTENT_SECURITY_POLICY);
        prop_assert!(policy.is_some_and(|policy| policy == POLICY), "{reply:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_form_is_answered_or_refused_by_the_name_of_a_field(form in super::form::any_form()) {
        // Small machines and batches, so that the test is fast.
        let query = form.query();
        let small = form_urlencoded::parse(query.as_bytes()).map(|(key, value)| {
            let most = match &*key {
                "global_batch" | "concurrency" => 64,
                key if key.starts_with("nodes_") => 2,
                _ => u64::MAX,
            };
            let number = value.parse::<u64>().ok().filter(|&number| number > most);
            (key.into_owned(), number.map_or_else(|| value.into_owned(), |_| most.to_string()))
        });
        let form = Form::read(small.collect::<Vec<_>>()).unwrap();
        match Answerer::default().answer(&StudyText::new(&form), &Progress::default()) {
            Ok(answered) => prop_assert!(!answered.sentence().is_empty()),
            Err(AnswerError::Refused(error)) => prop_assert!(error.field().is_some(), "{error}\n{}", form.query()),
            Err(other) => prop_assert!(false, "{other}\n{}", form.query()),
        }
    }
}
