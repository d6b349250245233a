package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// report has one spec of each kind, as the framework writes them.
const report = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="6"><testsuite name="Kubernetes e2e suite" tests="6">
<testcase name="[SynchronizedBeforeSuite]" time="0.1"></testcase>
<testcase name="[It] [sig-network] Services should work [LinuxOnly] [Conformance]" time="3.25"></testcase>
<testcase name="[It] [sig-network] DNS should break [Conformance]" time="12"><failure type="failed">timed out&#xA;In [It] at: dns.go</failure></testcase>
<testcase name="[It] [sig-network] Services over SCTP" time="0.5"><skipped message="skipped - no SCTP"></skipped></testcase>
<testcase name="[It] [sig-network] Services left out" time="0"><skipped message="skipped"></skipped></testcase>
<testcase name="[SynchronizedAfterSuite]" time="0.1"></testcase>
</testsuite></testsuites>`

func TestTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "junit.xml")
	if err := os.WriteFile(file, []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	results, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	if failed := printTable(&got, results); !failed {
		t.Error("a failed spec is no failure")
	}
	const want = `SPEC                  SECONDS  RESULT
DNS should break      12.0     FAILED: timed out
Services over SCTP    0.5      skipped: no SCTP
Services should work  3.2      ok
1 passed, 1 failed, 1 skipped by themselves
`
	if got.String() != want {
		t.Errorf("table:\n%s\nwant:\n%s", got.String(), want)
	}
}

// TestRecord: a run changes only the lines of its own specs, and an interrupted run changes none.
func TestRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "record.txt")
	if err := os.WriteFile(file, []byte("# mode shared\nDNS should break\tok\nServices over TCP\tok\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	run := []result{
		{Name: "Services over TCP", Error: &said{Type: "interrupted", Text: "[INTERRUPTED] by user"}},
		{Name: "DNS should break", Failure: &said{Text: "[FAILED] timed out\nIn [It]"}},
		{Name: "Conntrack", Skipped: &said{Message: "skipped - no SCTP"}},
	}
	if err := record(file, run); err != nil {
		t.Fatal(err)
	}
	const want = `# mode shared
Conntrack	skipped: no SCTP
DNS should break	FAILED: timed out
Services over TCP	ok
`
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s %v\nwant:\n%s", got, err, want)
	}
}

// TestGoTests: a test's subtests are the reason why it failed, and no results of their own.
func TestGoTests(t *testing.T) {
	const log = `=== RUN   TestClusterNetworkPolicy
--- FAIL: TestClusterNetworkPolicy (9.00s)
    --- FAIL: TestClusterNetworkPolicy/CNPAdminTierGress (3.50s)
        --- PASS: TestClusterNetworkPolicy/CNPAdminTierGress/Should_allow (1.00s)
        --- FAIL: TestClusterNetworkPolicy/CNPAdminTierGress/Should_deny (2.50s)
    --- PASS: TestClusterNetworkPolicy/CNPAdminTierPriority (1.00s)
        --- PASS: TestClusterNetworkPolicy/CNPAdminTierPriority/Should_allow (1.00s)
    --- SKIP: TestClusterNetworkPolicy/CNPAdminTierEgressNodePeers (0.00s)
`
	wantWhat(t, log, func(file string) ([]result, error) { return readGoTests(file, policyAPITest) }, []string{
		"CNPAdminTierGress FAILED: Should_deny;", "CNPAdminTierPriority ok",
		"CNPAdminTierEgressNodePeers skipped: not supported"})
}

// TestCyclonus reads a report as cyclonus writes it.
func TestCyclonus(t *testing.T) {
	const report = `<testsuite tests="0" failures="1" time="" name="cyclonus">
    <testcase classname="" name="1: deny all" time=""></testcase>
    <testcase classname="" name="2: deny all" time="">
        <failure message="" type=""></failure>
    </testcase>
</testsuite>`
	wantWhat(t, report, readCyclonus, []string{"1: deny all ok", "2: deny all FAILED: "})
}

func wantWhat(t *testing.T, text string, read func(file string) ([]result, error), want []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	results, err := read(file)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range results {
		got = append(got, r.Name+" "+r.what())
	}
	if !slices.Equal(got, want) {
		t.Errorf("results %q, want %q", got, want)
	}
}
