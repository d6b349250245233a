package demo

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hairpin/lab"
	"hairpin/lab/probe"
)

// loseOnce drops each TCP segment to a server on its first arrival, and each segment from it on its
// first transmission.
const loseOnce = `add table inet lost
add set inet lost came { typeof tcp sequence . tcp ackseq . tcp flags; flags dynamic; size 65535; }
add set inet lost left { typeof tcp sequence . tcp ackseq . tcp flags; flags dynamic; size 65535; }
add chain inet lost in { type filter hook prerouting priority -400; }
add chain inet lost out { type filter hook postrouting priority 400; }
add rule inet lost in tcp dport %[1]d tcp sequence . tcp ackseq . tcp flags != @came add @came { tcp sequence . tcp ackseq . tcp flags } drop
add rule inet lost out tcp sport %[1]d tcp sequence . tcp ackseq . tcp flags != @left add @left { tcp sequence . tcp ackseq . tcp flags } drop
`

// everySegmentLost tries all TCP paths at once while servers lose every segment once, as an
// overloaded machine does. Each connection must still succeed: its packets take the path of the
// lost ones, and have their source. On the userspace datapath, conntrack treats retransmissions as
// invalid.
func everySegmentLost(t *testing.T, d *Demo) {
	t.Helper()
	o, err := d.source.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorld(t.Context(), d.lab, o)
	if err != nil {
		t.Fatal(err)
	}
	nft := func(e endpoint, script string) {
		t.Helper()
		var out []byte
		var err error
		// another version of nft than the one that wrote a node's tables may fail to read them
		if n := d.lab.Node(e.place.Name()); n != nil {
			_, err = n.ExecInput(context.WithoutCancel(t.Context()), script, "nft", "-f", "-")
		} else {
			err = lab.Do(e.place, func() (err error) {
				cmd := exec.Command("nft", "-f", "-")
				cmd.Stdin = strings.NewReader(script)
				out, err = cmd.CombinedOutput()
				return err
			})
		}
		if err != nil {
			t.Errorf("%s: nft: %v: %s", e.place.Name(), err, out)
		}
	}
	for _, e := range w.endpoints {
		nft(e, fmt.Sprintf(loseOnce, e.port))
		defer nft(e, "delete table inet lost")
	}
	var all sync.WaitGroup
	n, begin := 0, time.Now()
	for _, c := range Cases() {
		if inVain(c.By) {
			continue
		}
		for _, f := range families() {
			n++
			all.Go(func() { w.tryLost(t, c, f) })
		}
	}
	all.Wait()
	t.Logf("%d connections came about within %v, though every segment was lost once", n,
		time.Since(begin).Round(100*time.Millisecond))
}

func (w *world) tryLost(t *testing.T, c Case, f family) {
	name := strings.Join([]string{c.From, c.To, c.Path, "tcp" + f.name}, " ")
	to, err := w.target(c, f)
	if err != nil {
		t.Error(err)
		return
	}
	wants, err := w.sources(c.Saw, f)
	if err != nil {
		t.Error(err)
		return
	}
	a := lab.Get(t.Context(), w.endpoints[c.From].place,
		probe.Request{Protocol: "tcp", To: to, Timeout: time.Minute, Speak: true})
	switch {
	case a.Error != "":
		t.Errorf("%s: %s after %.0f ms", name, a.Error, a.Millis)
	case a.Name != c.From && !slices.Contains(wants,
		a.Saw.Addr()): // one of several endpoints may reach itself, which is another case
		t.Errorf("%s: %s saw %s instead of %v", name, a.Name, a.Saw, wants)
	}
}
