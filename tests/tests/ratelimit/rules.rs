//! Which rule a descriptor meets, and which counter: domains, depth, exact values, wildcards, keys
//! alone, shared thresholds, and the matchers beyond those of envoyproxy/ratelimit.
//!
//! Limits are distinguished by their numbers: what is left after a first hit names the rule that was met.

use tidegate_tests::service::{Service, check};

#[tokio::test]
async fn an_unknown_domain_has_no_limits() -> anyhow::Result<()> {
    let limits = "- {key: k, rate_limit: {unit: day, requests_per_unit: 0}}";
    check(
        limits,
        &[],
        &[
            ("@nowhere k=v", "OK: OK no limit"),
            ("@nowhere k=v 0/day & k=w", "OK: OK no limit, OK no limit"),
            ("@Test k=v", "OK: OK no limit"),
            ("k=v", "OVER: OVER 0/0 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn domains_have_rules_and_counters_of_their_own() -> anyhow::Result<()> {
    let file = |domain: &str, requests: u32| {
        format!(
            "domain: {domain}\ndescriptors:\n\
             - {{key: k, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}\n"
        )
    };
    let files = [("a.yaml", file("one", 5)), ("b.yml", file("two", 5)), ("c.yaml", file("t/3", 7))];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    let service = Service::start_on(&files, &[]).await?;
    service
        .expect_all(&[
            ("@one 3x k=v", "OK: OK 2/5 per day"),
            ("@two 1x k=v", "OK: OK 4/5 per day"),
            ("@t/3 k=v", "OK: OK 6/7 per day"),
            ("@one k=v +0", "OK: OK 2/5 per day"),
        ])
        .await
}

#[tokio::test]
async fn files_of_one_domain_may_be_merged() -> anyhow::Result<()> {
    let file = |key: &str| {
        format!(
            "domain: test\ndescriptors:\n\
             - {{key: {key}, rate_limit: {{unit: day, requests_per_unit: 5}}}}\n"
        )
    };
    let (a, b) = (file("a"), file("b"));
    let service =
        Service::start_on(&[("a.yaml", &a), ("b.yaml", &b)], &["--merge-domains"]).await?;
    service.expect("a=x & b=x & c=x", "OK: OK 4/5 per day, OK 4/5 per day, OK no limit").await
}

#[tokio::test]
async fn a_key_alone_takes_any_value_and_counts_each_by_itself() -> anyhow::Result<()> {
    let limits = "
- {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: empty, value: '', rate_limit: {unit: day, requests_per_unit: 3}}
";
    check(
        limits,
        &[],
        &[
            ("user=a", "OK: OK 1/2 per day"),
            ("user=a", "OK: OK 0/2 per day"),
            ("user=a", "OVER: OVER 0/2 per day"),
            ("user=b", "OK: OK 1/2 per day"),
            ("user=A", "OK: OK 1/2 per day"),
            ("user=", "OK: OK 1/2 per day"),
            ("User=a", "OK: OK no limit"),
            // An empty value in the file is no value, so it stands for any.
            ("empty=x", "OK: OK 2/3 per day"),
            ("empty=", "OK: OK 2/3 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn a_descriptor_without_a_limit_lets_its_value_pass() -> anyhow::Result<()> {
    let limits = "
- {key: client, value: health}
- {key: client, value: '10.*'}
- {key: client, rate_limit: {unit: day, requests_per_unit: 1}}
";
    check(
        limits,
        &[],
        &[
            ("5x client=health", "OK: OK no limit"),
            ("5x client=10.0.0.1", "OK: OK no limit"),
            ("client=other", "OK: OK 0/1 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn a_rule_applies_only_where_the_descriptor_ends() -> anyhow::Result<()> {
    let limits = "
- key: a
  rate_limit: {unit: day, requests_per_unit: 10}
  descriptors:
  - key: b
    descriptors:
    - {key: c, rate_limit: {unit: day, requests_per_unit: 30}}
";
    check(
        limits,
        &[],
        &[
            ("a=x", "OK: OK 9/10 per day"),
            ("a=x,b=y", "OK: OK no limit"),
            ("a=x,b=y,c=z", "OK: OK 29/30 per day"),
            ("a=x,b=y,c=z,d=w", "OK: OK no limit"),
            // Neither a part of a rule nor another order of its keys will do.
            ("c=z", "OK: OK no limit"),
            ("b=y,c=z", "OK: OK no limit"),
            ("b=y,a=x", "OK: OK no limit"),
            ("a=x,c=z,b=y", "OK: OK no limit"),
            // Every value on the way is part of the counter.
            ("a=x,b=y,c=z", "OK: OK 28/30 per day"),
            ("a=X,b=y,c=z", "OK: OK 29/30 per day"),
            ("a=x,b=Y,c=z", "OK: OK 29/30 per day"),
            ("a=x", "OK: OK 8/10 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn exact_values_go_before_wildcards_and_those_before_keys_alone() -> anyhow::Result<()> {
    // In the file the other way round.
    let limits = "
- {key: k, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: k, value: 'a*', rate_limit: {unit: day, requests_per_unit: 20}}
- {key: k, value: ab, rate_limit: {unit: day, requests_per_unit: 30}}
";
    check(
        limits,
        &[],
        &[
            ("k=ab", "OK: OK 29/30 per day"),
            ("k=abc", "OK: OK 19/20 per day"),
            ("k=a", "OK: OK 19/20 per day"),
            ("k=b", "OK: OK 9/10 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn the_first_wildcard_of_the_file_that_matches_wins() -> anyhow::Result<()> {
    let limits = "
- {key: k, value: '*z', rate_limit: {unit: day, requests_per_unit: 10}}
- {key: k, value: 'a*', rate_limit: {unit: day, requests_per_unit: 20}}
- {key: k, value: 'b*c*d', rate_limit: {unit: day, requests_per_unit: 30}}
- {key: k, value: '*mid*', rate_limit: {unit: day, requests_per_unit: 40}}
- {key: k, value: 'x.y*', rate_limit: {unit: day, requests_per_unit: 50}}
- {key: k, rate_limit: {unit: day, requests_per_unit: 60}}
- {key: all, value: '**', rate_limit: {unit: day, requests_per_unit: 70}}
";
    check(
        limits,
        &[],
        &[
            ("k=az", "OK: OK 9/10 per day"),
            ("k=z", "OK: OK 9/10 per day"),
            ("k=amid", "OK: OK 19/20 per day"),
            ("k=ab", "OK: OK 19/20 per day"),
            // A star stands for nothing as well, and what is between two of them comes in order.
            ("k=bcd", "OK: OK 29/30 per day"),
            ("k=b1c2d", "OK: OK 29/30 per day"),
            ("k=bdc", "OK: OK 59/60 per day"),
            ("k=bcdc", "OK: OK 59/60 per day"),
            ("k=mid", "OK: OK 39/40 per day"),
            ("k=xmidx", "OK: OK 39/40 per day"),
            // Only the star is special.
            ("k=x.y1", "OK: OK 49/50 per day"),
            ("k=xay1", "OK: OK 59/60 per day"),
            ("k=q", "OK: OK 59/60 per day"),
            ("all=", "OK: OK 69/70 per day"),
            ("all=anything", "OK: OK 69/70 per day"),
            // Values of one pattern have counters of their own.
            ("k=ab", "OK: OK 18/20 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn keys_and_values_may_be_any_text() -> anyhow::Result<()> {
    let limits = r#"
- {key: schlüssel, value: 'größe*', rate_limit: {unit: day, requests_per_unit: 10}}
- {key: '%/#', value: '%/=#', rate_limit: {unit: day, requests_per_unit: 20}}
- {key: k, value: "a\tb\0", rate_limit: {unit: day, requests_per_unit: 30}}
- {key: k, rate_limit: {unit: day, requests_per_unit: 40}}
"#;
    let long = "x".repeat(1024 * 1024);
    check(
        limits,
        &[],
        &[
            ("schlüssel=größer", "OK: OK 9/10 per day"),
            ("schlüssel=grösse", "OK: OK no limit"),
            ("%/#=%/=#", "OK: OK 19/20 per day"),
            ("k=a\tb\0", "OK: OK 29/30 per day"),
            ("k=a\tb", "OK: OK 39/40 per day"),
            ("k=\0", "OK: OK 39/40 per day"),
            (&format!("k={long}"), "OK: OK 39/40 per day"),
            (&format!("k={long}x"), "OK: OK 39/40 per day"),
            (&format!("k={long}"), "OK: OK 38/40 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn there_is_no_way_back_up() -> anyhow::Result<()> {
    let limits = "
- {key: a, value: exact, descriptors: [{key: b, value: one, rate_limit: {unit: day, requests_per_unit: 10}}]}
- {key: a, value: 'wild*', descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 20}}]}
- {key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 30}}]}
";
    check(
        limits,
        &[],
        &[
            ("a=exact,b=one", "OK: OK 9/10 per day"),
            // The key alone would have a rule for it; the exact value was taken.
            ("a=exact,b=two", "OK: OK no limit"),
            ("a=wild1,c=x", "OK: OK 19/20 per day"),
            ("a=wild1,b=x", "OK: OK no limit"),
            ("a=other,b=x", "OK: OK 29/30 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn keys_and_values_that_join_to_the_same_text_have_counters_of_their_own()
-> anyhow::Result<()> {
    let limits = "
- {key: a, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: a_b, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: a_b_c, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: n, rate_limit: {unit: day, requests_per_unit: 5}, descriptors: [{key: m, rate_limit: {unit: day, requests_per_unit: 5}}]}
";
    check(
        limits,
        &[],
        &[
            ("3x a=b_c", "OK: OK 2/5 per day"),
            ("2x a_b=c", "OK: OK 3/5 per day"),
            ("1x a_b_c=", "OK: OK 4/5 per day"),
            ("a=b_c +0", "OK: OK 2/5 per day"),
            ("3x n=1_m_2", "OK: OK 2/5 per day"),
            ("2x n=1,m=2", "OK: OK 3/5 per day"),
            ("n=1_m_2 +0", "OK: OK 2/5 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn values_of_a_shared_threshold_share_one_counter() -> anyhow::Result<()> {
    let limits = "
- {key: file, value: 'img/*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: file, value: 'doc/*', rate_limit: {unit: day, requests_per_unit: 20}}
- {key: file, value: '*.tmp', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: file, value: img/own, rate_limit: {unit: day, requests_per_unit: 30}}
- {key: file, rate_limit: {unit: day, requests_per_unit: 40}}
";
    check(
        limits,
        &[],
        &[
            ("file=img/a", "OK: OK 9/10 per day"),
            ("2x file=img/b", "OK: OK 7/10 per day"),
            ("file=img/", "OK: OK 6/10 per day"),
            // An exact value stands apart, in the rules and in the counter.
            ("file=img/own", "OK: OK 29/30 per day"),
            ("file=img/a", "OK: OK 5/10 per day"),
            // Not shared: each value by itself.
            ("file=doc/a", "OK: OK 19/20 per day"),
            ("file=doc/b", "OK: OK 19/20 per day"),
            ("file=other", "OK: OK 39/40 per day"),
            // Patterns do not share with each other, even with the same numbers.
            ("file=x.tmp", "OK: OK 9/10 per day"),
            ("file=img/x.tmp", "OK: OK 4/10 per day"),
            ("file=y.tmp", "OK: OK 8/10 per day"),
            // The pattern itself as a value is a value like any other.
            ("file=img/*", "OK: OK 3/10 per day"),
            ("4x file=img/z", "OVER: OVER 3/10 per day"),
            ("3x file=img/z", "OK: OK 0/10 per day"),
            ("file=img/first-time", "OVER: OVER 0/10 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn a_shared_threshold_holds_at_its_own_level_only() -> anyhow::Result<()> {
    let limits = "
- key: file
  value: 'img/*'
  share_threshold: true
  descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: team, value: 't*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 20}}
- key: tenant
  descriptors:
  - {key: file, value: 'img/*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 30}}
  - {key: file, value: 'doc/*', rate_limit: {unit: day, requests_per_unit: 40}}
";
    check(
        limits,
        &[],
        &[
            ("file=img/1,user=a", "OK: OK 9/10 per day"),
            ("file=img/2,user=a", "OK: OK 8/10 per day"),
            ("file=img/1,user=b", "OK: OK 9/10 per day"),
            ("file=img/1,team=t1", "OK: OK 19/20 per day"),
            ("file=img/2,team=t2", "OK: OK 18/20 per day"),
            ("tenant=x,file=img/1", "OK: OK 29/30 per day"),
            ("tenant=x,file=img/2", "OK: OK 28/30 per day"),
            ("tenant=y,file=img/1", "OK: OK 29/30 per day"),
            ("tenant=x,file=doc/1", "OK: OK 39/40 per day"),
            ("tenant=x,file=doc/2", "OK: OK 39/40 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn a_counter_may_be_shared_within_one_request() -> anyhow::Result<()> {
    let limits = "
- {key: file, value: '*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}
";
    check(
        limits,
        &[],
        &[
            ("2x file=a & file=b", "OK: OK 3/5 per day, OK 1/5 per day"),
            // The second would be one too many, so the first is not taken either.
            ("file=c & file=d", "OVER: OK 1/5 per day, OVER 0/5 per day"),
            ("file=e", "OK: OK 0/5 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn values_match_by_prefix_range_and_expression_in_the_order_of_the_file() -> anyhow::Result<()>
{
    let limits = r"
- {key: k, match: {prefix: 'v1.'}, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: k, match: {regex: 'v[0-9]\.[a-z]+'}, rate_limit: {unit: day, requests_per_unit: 20}}
- {key: k, value: 'v2*', rate_limit: {unit: day, requests_per_unit: 30}}
- {key: k, match: {cidr: [10.0.0.0/8, '2001:db8::/32']}, rate_limit: {unit: day, requests_per_unit: 40}}
- {key: k, match: {cidr: 192.0.2.7}, rate_limit: {unit: day, requests_per_unit: 50}}
- {key: k, value: v1.exact, rate_limit: {unit: day, requests_per_unit: 60}}
- {key: k, rate_limit: {unit: day, requests_per_unit: 70}}
";
    check(
        limits,
        &[],
        &[
            ("k=v1.", "OK: OK 9/10 per day"),
            ("k=v1.x", "OK: OK 9/10 per day"),
            ("k=v1*", "OK: OK 69/70 per day"),
            ("k=v1.exact", "OK: OK 59/60 per day"),
            // An expression takes whole values.
            ("k=v2.x", "OK: OK 19/20 per day"),
            ("k=v2.x1", "OK: OK 29/30 per day"),
            ("k=v3.x1", "OK: OK 69/70 per day"),
            ("k=10.255.0.1", "OK: OK 39/40 per day"),
            ("k=11.0.0.1", "OK: OK 69/70 per day"),
            ("k=::ffff:10.0.0.1", "OK: OK 39/40 per day"),
            ("k=2001:db8:1::1", "OK: OK 39/40 per day"),
            ("k=2001:DB8:1::2", "OK: OK 39/40 per day"),
            ("k=2001:db9::1", "OK: OK 69/70 per day"),
            // What is in the range as a whole is a range in it.
            ("k=10.1.2.0/24", "OK: OK 39/40 per day"),
            ("k=10.0.0.0/7", "OK: OK 69/70 per day"),
            ("k=192.0.2.7", "OK: OK 49/50 per day"),
            ("k=192.0.2.8", "OK: OK 69/70 per day"),
            ("k=10.no.address", "OK: OK 69/70 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn matched_values_count_by_themselves_or_share() -> anyhow::Result<()> {
    let limits = "
- {key: ip, match: {cidr: 10.0.0.0/8}, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: ip, match: {cidr: 0.0.0.0/0}, rate_limit: {unit: day, requests_per_unit: 20}}
- {key: path, match: {prefix: /api/}, share_threshold: true, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 30}}]}
- {key: path, match: {regex: '/[0-9]+'}, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 40}}
";
    check(
        limits,
        &[],
        &[
            ("ip=10.0.0.1", "OK: OK 9/10 per day"),
            ("ip=10.0.0.2", "OK: OK 8/10 per day"),
            ("ip=11.0.0.1", "OK: OK 19/20 per day"),
            ("ip=11.0.0.2", "OK: OK 19/20 per day"),
            ("path=/api/a,user=u", "OK: OK 29/30 per day"),
            ("path=/api/b,user=u", "OK: OK 28/30 per day"),
            ("path=/api/b,user=v", "OK: OK 29/30 per day"),
            ("path=/1", "OK: OK 39/40 per day"),
            ("path=/22", "OK: OK 38/40 per day"),
        ],
    )
    .await
}
