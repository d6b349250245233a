module github.com/ishidawataru/sctp

go 1.26.0

require (
	github.com/pion/sctp v1.12.1
	golang.org/x/net v0.59.0
)

require (
	github.com/pion/logging v0.2.4 // indirect
	github.com/pion/randutil v0.1.0 // indirect
	github.com/pion/transport/v5 v5.1.4 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
