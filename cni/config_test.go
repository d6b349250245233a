package cni_test

import (
	"strings"
	"testing"
	"time"

	"hairpin/lab"
)

// TestNotReady sends requests to an agent that cannot serve pods yet, for several reasons.
func TestNotReady(t *testing.T) {
	t.Parallel() // it waits most of the time
	w := newWorld(t)
	n := w.node(1)
	s := w.sandbox(n, "web")
	serve(t, s.path())
	w.plugin(n, "STATUS", netconf(n), nil).refused(t, 50, "not ready", "cni.sock")
	w.start(n)
	says := func(words ...string) {
		t.Helper()
		eventually(t, 20*time.Second, strings.Join(words, " "), func() error {
			o := w.plugin(n, "STATUS", netconf(n), nil)
			if o.code() == 50 && containsAll(o.err.Error(), words) {
				return nil
			}
			return errorOf(o)
		})
	}
	says("not ready", "no Node node-a")
	s.call("ADD").refused(t, 50, "no Node node-a")
	w.manifest("node-a.yaml", nodeManifest(1, "[]"))
	says("Node/node-a", "spec.podCIDRs")
	s.call("ADD").refused(t, 50, "Node/node-a", "spec.podCIDRs")
	must(t, s.call("DEL").err) // it needs no readiness
	// It becomes ready while an ADD waits.
	added := make(chan outcome, 1)
	go func() { added <- s.call("ADD") }()
	w.manifest("node-a.yaml", nodeManifest(1, usualCIDRs(1)))
	must(t, (<-added).err)
	s.reachable()
	w.ready(n)
}

// TestSmallSubnet allocates all of a node's addresses.
func TestSmallSubnet(t *testing.T) {
	w := newWorld(t)
	w.manifest("node-a.yaml", nodeManifest(1, `["10.244.1.0/29", "fd00:10:244:1::/64"]`))
	n := w.node(1)
	w.start(n)
	w.ready(n)
	var pods []*sandbox
	for range 4 { // .3 to .6
		s := w.sandbox(n, "pod-"+string(rune('a'+len(pods))))
		s.add()
		pods = append(pods, s)
	}
	late := w.sandbox(n, "late")
	serve(t, late.path())
	o := late.call("ADD")
	t.Log(o.err)
	o.refused(t, 11, "Pod/default/late", "Node/node-a", "spec.podCIDRs", "10.244.1.0/29", "4 are in use")
	consistent(t, n, pods...)
	// A sandbox that vanished without DEL keeps its address only until another pod needs it.
	pods[1].vanish()
	eventually(t, 10*time.Second, "its link is gone", func() error { return goneLink(t, n, pods[1].host) })
	late.add()
	if late.ips[0] != pods[1].ips[0] {
		t.Errorf("got %s, free was %s", late.ips[0], pods[1].ips[0])
	}
	late.reachable()
	consistent(t, n, pods[0], pods[2], pods[3], late)
}

// TestPodCIDRsChanged changes the subnet of the Node, which was deleted and made again.
func TestPodCIDRsChanged(t *testing.T) {
	w, n := single(t)
	old := w.sandbox(n, "old")
	old.add()
	w.manifest("node-a.yaml", nodeManifest(1, `["10.244.9.0/24", "fd00:10:244:9::/64"]`))
	eventually(t, 20*time.Second, "CHECK reports it", func() error {
		o := old.call("CHECK")
		if o.code() == 100 && containsAll(o.err.Error(),
			[]string{"Node/node-a", "spec.podCIDRs", "10.244.9.0/24", "Pod/default/old", "10.244.1.3/24"}) {
			return nil
		}
		return errorOf(o)
	})
	must(t, n.WaitFor(t.Context(), 20*time.Second, func(text string) bool {
		return containsAll(text, []string{"Pod/default/old", "10.244.1.3 is not in the pod subnets of node node-a"})
	}, "sh", "-c", "hairpin status --config-file="+settings+" || true"))
	s := w.sandbox(n, "new")
	serve(t, s.path())
	s.add()
	if got := s.ips[0].String(); got != "10.244.9.3" {
		t.Errorf("the new pod has %s", got)
	}
	eventually(t, 20*time.Second, "the new pod is reachable",
		func() error { return get(n.Netns(), "udp", s.ips[0], port) })
	// The kubelet makes the old pod's sandbox again.
	again := w.sandbox(n, "old")
	serve(t, again.path())
	again.add()
	again.reachable()
	old.del()
	consistent(t, n, s, again)
}

func goneLink(t testing.TB, n *lab.Node, name string) error {
	for _, l := range links(t, n) {
		if l == name {
			return errorText("it is there")
		}
	}
	return nil
}

type errorText string

func (e errorText) Error() string { return string(e) }

// errorOf returns the error of an outcome, or an error if it had none.
func errorOf(o outcome) error {
	if o.err == nil {
		return errorText("no error")
	}
	return o.err
}

func containsAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}
