package cni

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"hairpin/cluster"
	"hairpin/cni/veth"
	"hairpin/ovsdb"
	"hairpin/retry"
)

// health has the problems of existing pods, and why no pod can be added although the agent is
// ready.
type health struct {
	unwritable    error                // why Open vSwitch's database cannot be written
	missing       map[string]time.Time // since when a host's end is missing, by its name
	lostHostPorts map[string]error     // why host ports of pods are not restored, by the host's end
}

const (
	// missingDelay is how long the host's end of a pod must be missing before that is a problem:
	// the runtime removes a pod's namespace before it requests DEL.
	missingDelay = 5 * time.Second
	// probePause is the time between attempts to write a database that could not be written.
	probePause = 2 * time.Second
	// probeTimeout limits each attempt.
	probeTimeout = time.Second
	// sizeOfRow is larger than what an ADD writes, in bytes.
	sizeOfRow = 4096
)

// keyProbe is the external_ids key of Open_vSwitch that is written to test whether the database is
// writable.
const keyProbe = "hairpin-probe"

// transact writes to Open vSwitch's database, and records whether it is writable: with a full disk
// each write fails until there is space.
func (s *Server) transact(ctx context.Context, ops ...ovsdb.Op) error {
	_, err := s.ovs.Transact(ctx, ops...)
	s.recordWrite(err)
	return err
}

func (s *Server) recordWrite(err error) {
	if err != nil && !strings.Contains(err.Error(), "I/O error") {
		return // another reason, such as a lost connection, says nothing about writing
	}
	s.mu.Lock()
	was := s.health.unwritable
	s.health.unwritable = err
	s.mu.Unlock()
	switch {
	case was == nil && err != nil:
		s.log.Warn("cni: pods cannot be added: the database of Open vSwitch cannot be written", "error", err)
	case was != nil && err == nil:
		s.log.Info("cni: the database of Open vSwitch can be written again")
	default:
		return
	}
	s.changed.Notify()
}

func (s *Server) unwritable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health.unwritable
}

// tryWrite tests whether a database that was not writable is writable now.
func (s *Server) tryWrite(ctx context.Context) {
	if s.unwritable() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	change := func(ops ...ovsdb.Mutation) error {
		return s.transact(ctx, ovsdb.Mutate("Open_vSwitch", ops...).All())
	}
	// The value must differ from the last one, because unchanged values are not written. It must be
	// larger than a pod's row: if it fits on the disk, a row does.
	value := map[string]string{keyProbe: fmt.Sprint(time.Now().UnixNano()) + strings.Repeat("-", sizeOfRow)}
	if change(ovsdb.SetKeys("external_ids", value)...) == nil {
		_ = change(ovsdb.DeleteFrom("external_ids", []string{keyProbe}))
	}
}

// probe repeats a failed write until it succeeds or ctx ends. A runtime that reads STATUS adds no
// pods meanwhile, so no ADD would notice that the database can be written again.
func (s *Server) probe(ctx context.Context) {
	retry.Every(ctx, probePause, func() { s.tryWrite(ctx) })
}

// CheckLinks checks the host's ends of the pods' veth pairs. It sets up an interface that is down,
// and reports a deleted one as a problem. It must be called when links change.
func (s *Server) CheckLinks() {
	// The rows before the devices: an attachment has a device before it has a row, and DEL removes
	// the row first.
	rows := s.alloc.attachments(s.ovs.View())
	ends, err := veth.HostEnds()
	if err != nil {
		return
	}
	now, missing := time.Now(), map[string]time.Time{}
	for _, a := range rows {
		switch link := ends[a.Host]; {
		case s.alloc.isReserved(a.Host):
		case link == nil:
			missing[a.Host] = now
		case link.Attrs().Flags&net.FlagUp == 0:
			log := s.log.With("pod", a.pod.String(), "interface", a.Host)
			if err := netlink.LinkSetUp(link); err != nil {
				log.Warn("cni: set up a pod's interface, which is down", "error", err)
			} else {
				log.Warn("cni: set up a pod's interface, which was down")
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for host := range missing {
		if since, known := s.health.missing[host]; known {
			missing[host] = since
		} else {
			time.AfterFunc(missingDelay, s.changed.Notify) // then Problems lists it
		}
	}
	if len(s.health.missing) > 0 {
		s.changed.Notify() // Problems may list fewer
	}
	s.health.missing = missing
}

// Problems returns why no pods can be added, and which pods have lost their interface or host
// ports.
func (s *Server) Problems() (list []cluster.Problem) {
	pods := map[string]string{}
	for _, a := range s.alloc.attachments(s.ovs.View()) {
		pods[a.Host] = a.pod.String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	add := func(format string, args ...any) {
		list = append(list, cluster.Problem{
			Owner: cluster.NodeOwner(s.node), Field: "pods", Message: fmt.Sprintf(format, args...),
		})
	}
	if err := s.health.unwritable; err != nil {
		add("none can be added: the database of Open vSwitch cannot be written: %v", err)
	}
	for host, since := range s.health.missing {
		if pod, still := pods[host]; still && time.Since(since) >= missingDelay {
			add("%s has no network: its interface %s was deleted; delete the pod", pod, host)
		}
	}
	for host, err := range s.health.lostHostPorts {
		if pod, still := pods[host]; still {
			add("host ports of %s are lost: %v", pod, err)
		}
	}
	slices.SortFunc(list, cluster.Problem.Compare)
	return list
}
