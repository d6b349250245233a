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

// clients opens connections until ctx ends, waits for the last ones, and closes those that it kept.
func (r *run) clients(ctx context.Context) {
	var all sync.WaitGroup
	for i, c := range r.list {
		all.Go(func() {
			defer func() {
				for to := range c.sessions {
					c.closes(to)
				}
			}()
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

// site is a place of clients. Its pod gets another network namespace when its node reboots.
type site struct {
	find  func(context.Context) (lab.Place, error)
	mu    sync.Mutex
	found lab.Place
}

// place returns the place, or nil if nothing runs there.
func (s *site) place(ctx context.Context) lab.Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == nil {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		s.found, _ = s.find(ctx) // the API server may be away: the next connection tries again
	}
	return s.found
}

// forget makes the next connection look for the place again.
func (s *site) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found = nil
}

// ask opens a connection, or uses the one that is open. There is no result if its client's pod does
// not run.
func (r *run) ask(ctx context.Context, path int, c *connection, to netip.AddrPort) {
	place := c.from.place(ctx)
	if place == nil {
		return
	}
	begin := r.since()
	kept := c.sessions[to]
	a := c.exchange(ctx, place, to)
	if kept != nil && a.Error != "" { // it may have broken at any time since its last echo
		begin = kept.Last.Sub(r.begin)
	}
	if strings.Contains(a.Error, "network namespace") { // lab.Do: the node or its pod has ended
		c.from.forget()
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

// exchange gets the greeting of a new connection, or an echo on one that was kept open, whose
// greeting it returns again.
func (c *connection) exchange(ctx context.Context, from lab.Place, to netip.AddrPort) (a probe.Answer) {
	request := probe.Request{Protocol: "tcp", To: to, Timeout: c.limit}
	if !c.keeps {
		return lab.Get(ctx, from, request)
	}
	s := c.sessions[to]
	var err error
	if s != nil {
		err = s.Echo(c.limit)
	} else {
		err = lab.Do(from, func() (err error) {
			s, err = probe.Open(ctx, request)
			return err
		})
	}
	if err != nil {
		c.closes(to)
		return probe.Answer{Error: err.Error()}
	}
	c.sessions[to] = s
	return probe.Answer{Greeting: s.Greeting}
}

// closes closes the connection to an address if there is one.
func (c *connection) closes(to netip.AddrPort) {
	if s := c.sessions[to]; s != nil {
		s.Close()
		delete(c.sessions, to)
	}
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
