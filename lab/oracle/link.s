// A package with an assembly file may declare functions without a body (judges_test.go).
