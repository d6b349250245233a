package chaos

import (
	"cmp"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"hairpin/lab"
	"hairpin/lab/attack"
	"hairpin/lab/cluster"
	"hairpin/lab/probe"
)

// since returns the time since the start of the run.
func (r *run) since() time.Duration { return time.Since(r.begin) }

// clients opens connections until ctx ends, and waits for the last ones.
func (r *run) clients(ctx context.Context) {
	var all sync.WaitGroup
	for i, c := range r.list {
		all.Go(func() {
			random := rand.New(rand.NewPCG(r.opt.Seed, uint64(i)))
			for turn := 0; ; turn++ {
				pause(ctx, jitter(random, c.every/2, c.every*3/2))
				if ctx.Err() != nil {
					return
				}
				r.ask(context.WithoutCancel(ctx), i, c, c.to[turn%len(c.to)])
			}
		})
	}
	all.Wait()
}

// ask opens a connection. There is no result if its client's pod does not run.
func (r *run) ask(ctx context.Context, path int, c *connection, to netip.AddrPort) {
	if c.from.found == nil {
		limited, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		place, err := c.from.place(limited)
		if err != nil {
			return
		}
		c.from.found = place
	}
	begin := r.since()
	a := lab.Get(ctx, c.from.found, probe.Request{Protocol: "tcp", To: to, Timeout: c.limit})
	if strings.Contains(a.Error, "network namespace") { // lab.Get: the node or its pod has ended
		c.from.found = nil
		return
	}
	result := Result{Path: path, At: begin, Took: r.since() - begin, To: to, Error: a.Error, Server: a.Name,
		Saw: a.Saw.Addr().Unmap()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, result)
	if what := violated(&c.Path, &result); what != "" && what != failed {
		r.say("%s: %s: %s", c.Name, what, result.describe())
	}
	r.explainSoon(c, &result)
}

const (
	arpEvery = 500 * time.Millisecond
	arpWait  = 200 * time.Millisecond
)

// watch asks by ARP which machine has an address, until ctx ends, and records when several answer.
func (r *run) watch(ctx context.Context, a netip.Addr) error {
	at := r.cluster.Lab().Host(cluster.ClientName)
	own, err := attack.MAC(at, "eth0")
	if err != nil {
		return err
	}
	request := attack.ARPRequest(own, r.addresses(cluster.ClientName)[0], a)
	machines := map[string]string{}
	for _, n := range r.cluster.Lab().Nodes() {
		mac, err := attack.MAC(n, "eth0")
		if err != nil {
			return err
		}
		machines[mac.String()] = n.Name()
	}
	var now *Shared
	for ctx.Err() == nil {
		answers, err := arp(ctx, at, request, a)
		if err != nil {
			return err
		}
		if now != nil && len(answers) < 2 {
			r.share(*now)
			now = nil
		}
		if now == nil && len(answers) > 1 {
			now = &Shared{Address: a, From: r.since()}
		}
		if now != nil {
			now.To = r.since()
			for _, mac := range answers {
				if n := cmp.Or(machines[mac], mac); !slices.Contains(now.Nodes, n) {
					now.Nodes = append(now.Nodes, n)
				}
			}
		}
		pause(ctx, arpEvery)
	}
	if now != nil {
		r.share(*now)
	}
	return nil
}

// share records a time in which several nodes answered for an address.
func (r *run) share(s Shared) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shared = append(r.shared, s)
}

// arp sends a request and returns the MACs that answer.
func arp(ctx context.Context, at lab.Place, request []byte, a netip.Addr) (list []string, err error) {
	ear, err := attack.Listen(at, "eth0")
	if err != nil {
		return nil, err
	}
	defer ear.Close()
	if err := attack.Send(at, "eth0", request); err != nil {
		return nil, err
	}
	for end := time.Now().Add(arpWait); time.Now().Before(end); {
		ear.Hear(ctx, time.Until(end), func(b []byte) bool {
			const arp, reply = 0x0806, 2
			if len(b) < 42 || binary.BigEndian.Uint16(b[12:]) != arp || binary.BigEndian.Uint16(b[20:]) != reply {
				return false
			}
			mac := net.HardwareAddr(b[22:28]).String()
			if netip.AddrFrom4([4]byte(b[28:32])) == a && !slices.Contains(list, mac) {
				list = append(list, mac)
			}
			return false
		})
	}
	return list, nil
}
