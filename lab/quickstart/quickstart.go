// Package quickstart reads the commands of the quick starts (docs/start), and says which of them a
// lab can play. Only tests use it.
package quickstart

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Pages are the quick starts. It is read-only.
var Pages = []string{"kubeadm", "edge", "k3s", "kind"}

// Step is a file to write, or a command.
type Step struct {
	File, Content string // a file's name and content; empty for a command
	Command       string // in one line, without a comment
	Comment       string // what the command must print, if the page says that
	Where         Where  // a command is played
	Reason        string // why it is not played
}

// Where is the place where a command is played.
type Where int

// Places.
const (
	Nowhere Where = iota
	Admin         // on the administrator's machine, for the cluster
	Node          // on a node
)

// absent lists the pages of distributions that the lab does not have. Their Helm commands are
// rendered. It is read-only.
var absent = map[string]string{
	"k3s":  "the lab has no k3s",
	"kind": "the lab has no container engine for kind",
}

// rules say where commands are played, by their beginning. The first that fits applies. It is
// read-only.
var rules = []struct {
	command string
	where   Where
	reason  string
}{
	{"kubeadm init ", Nowhere, "the lab starts the API server and the kubelets itself"},
	{"kubectl taint nodes ", Nowhere, "the nodes of the lab have no taint"},
	{"tar -xzf hairpin-linux-amd64.tar.gz ", Nowhere, "the program is built from the checkout"},
	{"export KUBECONFIG=", Nowhere, "the lab passes its kubeconfig"},
	{"kind create cluster ", Nowhere, "the lab starts its own nodes"},
	{"kind load image-archive ", Nowhere, "the lab imports the images itself"},
	{"kubectl create namespace hairpin", Admin, ""},
	{"kubectl label namespace hairpin ", Admin, ""},
	{"kubectl hairpin ", Admin, ""},
	{"kubectl get nodes", Admin, ""},
	{"kubectl get service web", Nowhere, "the network of the lab has other addresses"},
	{"curl http://192.168.1.240/", Nowhere, "the network of the lab has other addresses"},
	{"helm install hairpin ", Admin, ""},
	{"hairpin preflight ", Node, ""},
	{"ip -brief address show ", Node, ""},
}

var (
	block = regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```$")
	named = regexp.MustCompile(`^# (\S+\.yaml)\n`)
)

// Read returns the steps of a page. A command without a rule is an error.
func Read(root, page string) ([]Step, error) {
	file := filepath.Join(root, "docs", "start", page+".md")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var steps []Step
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		kind, content := m[1], unindented(m[2])
		if kind != "" {
			if name := named.FindStringSubmatch(content); kind == "yaml" && name != nil {
				steps = append(steps, Step{File: name[1], Content: content})
			}
			continue
		}
		session := strings.HasPrefix(content, "$ ") // with the output below
		for line := range strings.Lines(strings.ReplaceAll(content, "\\\n", " ")) {
			command, is := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			if command == "" || session && !is {
				continue
			}
			s, err := step(page, command)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			steps = append(steps, s)
		}
	}
	return steps, nil
}

// unindented removes the indentation of a list from the lines of a block.
func unindented(text string) string {
	indent := text[:len(text)-len(strings.TrimLeft(text, " "))]
	return strings.TrimPrefix(strings.ReplaceAll("\n"+text, "\n"+indent, "\n"), "\n")
}

func step(page, line string) (Step, error) {
	command, comment, _ := strings.Cut(line, " # ")
	s := Step{Command: strings.Join(strings.Fields(command), " "), Comment: strings.TrimSpace(comment)}
	for _, r := range rules {
		if !strings.HasPrefix(s.Command+" ", r.command) {
			continue
		}
		if s.Where, s.Reason = r.where, r.reason; s.Where != Nowhere && absent[page] != "" {
			s.Where, s.Reason = Nowhere, absent[page]
		}
		return s, nil
	}
	return s, fmt.Errorf("no rule says whether the lab can play %q", s.Command)
}
