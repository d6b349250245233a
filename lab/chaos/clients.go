package chaos

import (
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
	// mostShared is how long two nodes may answer for an address while it moves.
	mostShared = 2 * time.Second
)

// watch asks by ARP who has an address, until ctx ends, and reports when two machines answer for
// longer than a move takes.
func (r *run) watch(ctx context.Context, a netip.Addr) error {
	at := r.cluster.Lab().Host(cluster.ClientName)
	own, err := attack.MAC(at, "eth0")
	if err != nil {
		return err
	}
	request := attack.ARPRequest(own, r.addresses(cluster.ClientName)[0], a)
	var began time.Duration // of the present time with two answers
	for ctx.Err() == nil {
		answers, err := arp(ctx, at, request, a)
		if err != nil {
			return err
		}
		switch now := r.since(); {
		case len(answers) < 2:
			began = 0
		case began == 0:
			began = now
		case now-began > mostShared:
			r.violate(Violation{What: "an address is on two nodes", From: began, To: now, Count: 1,
				First: a.String() + " is answered by " + strings.Join(answers, " and ")})
			began = 0
		}
		pause(ctx, arpEvery)
	}
	return nil
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
