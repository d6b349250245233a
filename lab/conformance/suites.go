package conformance

import (
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// suite is a set of tests of another project.
type suite struct {
	// images returns the names of the images that the tests use.
	images func(context.Context, *run) ([]string, error)
	// prepare changes the cluster before the tests; nil = nothing to do.
	prepare func(context.Context, *run) error
	// argv returns the program and its arguments. It writes its reports to r.dir.
	argv func(r *run) []string
	// total matches the line with the number of tests, if there is one. done matches a line of each
	// test; its group is empty if the test did not fail, or has only begun.
	total, done *regexp.Regexp
	// results reads the tests' results from the reports or from the log.
	results func(r *run) ([]result, error)
}

// suites are the suites by the name that `make conformance SUITE=…` takes.
var suites = map[string]suite{
	"kubernetes": {
		images:  kubernetesImages,
		argv:    kubernetesArgv,
		total:   regexp.MustCompile(`^Will run (\d+) of`),
		done:    regexp.MustCompile(`^• (\[FAILED\] )?\[`),
		results: func(r *run) ([]result, error) { return readReport(filepath.Join(r.dir, "junit_01.xml")) },
	},
	"network-policy-api": {
		images:  names("registry.k8s.io/e2e-test-images/agnhost:2.45"),
		prepare: installPolicyAPI,
		argv:    policyAPIArgv,
		done:    regexp.MustCompile(`^=== RUN   [^/]+/[^/]+()$`), // results follow at the end
		results: func(r *run) ([]result, error) { return readGoTests(r.log(), policyAPITest) },
	},
	"cyclonus": {
		images: names("docker.io/mfenwick100/cyclonus-worker:latest"),
		argv: func(r *run) []string {
			return []string{r.program("cyclonus"), "--tags", r.Tags, "--focus", r.Focus,
				"--junit-results-file", r.cyclonusReport()}
		},
		total:   regexp.MustCompile(`^testing (\d+) cases`),
		done:    regexp.MustCompile(`^case \d+ (?:passed|(failed)):`),
		results: func(r *run) ([]result, error) { return readCyclonus(r.cyclonusReport()) },
	},
}

func names(list ...string) func(context.Context, *run) ([]string, error) {
	return func(context.Context, *run) ([]string, error) { return list, nil }
}

// kubernetesImages returns the images that this e2e.test requires, except those that need a
// password or must not exist.
func kubernetesImages(ctx context.Context, r *run) ([]string, error) {
	text, err := r.output(ctx, r.program("e2e.test"), "--list-images")
	return slices.DeleteFunc(strings.Fields(text), func(name string) bool {
		return !strings.HasPrefix(name, "registry.k8s.io/")
	}), err
}

// kubernetesArgv runs e2e.test, several at once as ginkgo does.
func kubernetesArgv(r *run) []string {
	return []string{
		r.program("ginkgo"), "-v", "--no-color", "--keep-going", "--timeout=6h", "--procs", strconv.Itoa(r.Procs),
		"--focus", r.Focus, "--skip", r.Skip, r.program("e2e.test"), "--",
		// only the first of several processes would count them
		"--num-nodes", strconv.Itoa(len(r.cluster.Lab().Nodes())),
		"--kubeconfig", r.cluster.Kubeconfig(), "--kubectl-path", filepath.Join(r.root, "bin", "kubectl"),
		"--provider=skeleton", "--report-dir", r.dir,
	}
}

// installPolicyAPI installs the definition of ClusterNetworkPolicies that the suite belongs to,
// with all that Hairpin supports. The suite rejects definitions of other versions.
func installPolicyAPI(ctx context.Context, r *run) error {
	if _, err := r.cluster.Kubectl(ctx, "", "apply", "--server-side", "-f",
		r.program("clusternetworkpolicies.yaml")); err != nil {
		return err
	}
	_, err := r.cluster.Kubectl(ctx, "", "wait", "--for=condition=Established", "--timeout=60s",
		"crd/clusternetworkpolicies.policy.networking.k8s.io")
	return err
}

func policyAPIArgv(r *run) []string {
	return []string{
		r.program("policies.test"), "-test.v", "-test.run=^" + policyAPITest + "$", "-test.timeout=2h",
		"-report", filepath.Join(r.dir, "report.yaml"), "-version", r.version,
	}
}

// policyAPITest is the test of module policies.
const policyAPITest = "TestClusterNetworkPolicy"

func (r *run) cyclonusReport() string { return filepath.Join(r.dir, "junit.xml") }

// readCyclonus reads cyclonus' report, which has one suite, no times and no reasons.
func readCyclonus(file string) ([]result, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var report struct {
		Cases []result `xml:"testcase"`
	}
	if err := xml.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return report.Cases, nil
}

// goTest matches a result in the output of a program of go test -v. A subtest follows its parent,
// indented.
var goTest = regexp.MustCompile(`^ +--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)`)

// readGoTests reads the results of the direct subtests of a Go test from its output. Their own
// subtests that failed are the reason of a failure.
func readGoTests(log, test string) ([]result, error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	var results []result
	for line := range strings.Lines(string(text)) {
		m := goTest.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := strings.TrimPrefix(m[2], test+"/")
		if _, sub, nested := strings.Cut(name, "/"); nested {
			if parent := &results[len(results)-1]; m[1] == "FAIL" {
				parent.Failure.Text += sub + "; "
			}
			continue
		}
		r := result{Name: name}
		if r.Seconds, err = strconv.ParseFloat(m[3], 64); err != nil {
			return nil, fmt.Errorf("read %s: %w", log, err)
		}
		switch m[1] {
		case "FAIL":
			r.Failure = &said{}
		case "SKIP":
			r.Skipped = &said{Message: "not supported"}
		}
		results = append(results, r)
	}
	return results, nil
}
