// Command cyclonus runs cases of github.com/mattfenwick/cyclonus on the cluster of KUBECONFIG, as
// its command generate does, with three differences. The probes of a pod are one batch, by
// cyclonus' own worker in the pod; the command generate runs each probe by an exec of its own.
// Probes go to the Services' IP addresses, not to their names: some cases deny DNS, and a name that
// cannot be resolved then takes 40 s. And a case that fails, or cannot be run, makes the exit code
// 1.
package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/mattfenwick/cyclonus/pkg/connectivity"
	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

var (
	tags  = flag.String("tags", "", "tags of the cases to run, separated by commas; empty = all cases")
	focus = flag.String("focus", "", "regular expression of the names of the cases to run")
	junit = flag.String("junit-results-file", "", "file for the results, written after each case")
	list  = flag.Bool("list", false, "print the cases and run none")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// persistent repeats a batch if its output is not complete JSON: a stream of an exec sometimes ends
// early.
type persistent struct{ *kube.Kubernetes }

// ExecuteRemoteCommand runs a batch in a pod, 30 probes at a time: one that is denied takes 2 s.
func (p persistent) ExecuteRemoteCommand(namespace, pod, container string, command []string) (
	stdout, stderr string, commandErr, err error) {
	command = append(command, "--concurrency", "30")
	for range 5 {
		stdout, stderr, commandErr, err = p.Kubernetes.ExecuteRemoteCommand(namespace, pod, container, command)
		if commandErr != nil || err != nil || json.Valid([]byte(stdout)) {
			break
		}
	}
	return stdout, stderr, commandErr, err
}

var (
	namespaces = []string{"x", "y", "z"}
	pods       = []string{"a", "b", "c"}
	ports      = []int{80, 81}
	protocols  = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
)

func run() error {
	var include []string
	if *tags != "" {
		include = strings.Split(*tags, ",")
	}
	if err := generator.ValidateTags(include); err != nil {
		return err
	}
	matches, err := regexp.Compile(*focus)
	if err != nil {
		return err
	}
	cases := func(ip string) (list []*generator.TestCase) {
		for i, c := range generator.NewTestCaseGenerator(true, ip, namespaces, include, nil).GenerateTestCases() {
			// several have the same description, or none
			c.Description = fmt.Sprintf("%d: %s", i+1, cmp.Or(c.Description, strings.Join(c.Tags.Keys(), ",")))
			if matches.MatchString(c.Description) {
				list = append(list, c)
			}
		}
		return list
	}
	if *list {
		for _, c := range cases("192.0.2.1") {
			fmt.Printf("%s\n\t%s, %d steps\n", c.Description, strings.Join(c.Tags.Keys(), ","), len(c.Steps))
		}
		return nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Burst = 100, 100 // each case begins with 60 requests
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	cluster := persistent{&kube.Kubernetes{ClientSet: clients, RestConfig: cfg}}
	resources, err := probe.NewDefaultResources(cluster, namespaces, pods, ports, protocols, nil, 300, true, "")
	if err != nil {
		return err
	}
	zc, err := resources.GetPod("z", "c")
	if err != nil {
		return err
	}
	interpreter := connectivity.NewInterpreter(cluster, resources, &connectivity.InterpreterConfig{
		ResetClusterBeforeTestCase: true, VerifyClusterStateBeforeTestCase: true, KubeProbeRetries: 1,
		PerturbationWaitSeconds: 1, BatchJobs: true, IgnoreLoopback: true,
	})
	printer := &connectivity.Printer{IgnoreLoopback: true, JunitResultsFile: *junit}
	all := cases(zc.IP)
	fmt.Printf("testing %d cases\n", len(all))
	failed := 0
	for i, c := range all {
		for _, step := range c.Steps {
			step.Probe.Mode = generator.ProbeModeServiceIP
		}
		result := interpreter.ExecuteTestCase(c)
		if result.Err != nil { // which the reports would not have
			return fmt.Errorf("case %d, %s: %w", i+1, c.Description, result.Err)
		}
		printer.PrintTestCaseResult(result)
		outcome := "passed"
		if !result.Passed(true) {
			failed, outcome = failed+1, "failed"
		}
		fmt.Printf("case %d %s: %s\n", i+1, outcome, c.Description)
		if err := connectivity.PrintJUnitResults(*junit, printer.Results, true); err != nil {
			return err
		}
	}
	printer.PrintSummary()
	if failed > 0 {
		return fmt.Errorf("%d of %d cases failed", failed, len(all))
	}
	for _, namespace := range namespaces {
		if err := cluster.DeleteNamespace(namespace); err != nil {
			return err
		}
	}
	return nil
}
