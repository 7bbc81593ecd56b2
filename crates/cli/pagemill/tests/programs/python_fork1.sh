check test.test_fork1
